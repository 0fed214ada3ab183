//! The requests of clients, and who answers each.

use super::closer::Sent;
use super::session::{Answer, Connection, reply};
use super::{
    admin, checkpoints, dirty, guest, jobs, layout, loads, miss, open, phases, pins, scratch, shuffle,
    traffic, write,
};
use crate::jobs::job_state::Size;
use crate::mounts::admit::{Admitted, NoFile, admit_at, require_writer};
use crate::write_back::Opening;
use forebay_store::Reservation;
use forebay_wire::{Refusal, Reply, Request};
use rustix::fs::OFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// An administrative command, for the audit log. Evictions of single files are noted
/// together.
fn administrative(request: &Request) -> Option<String> {
    Some(match request {
        Request::EvictAll => "evict --all".to_owned(),
        Request::SetCapacity { bytes } => format!("capacity {bytes}"),
        Request::Shutdown => "down".to_owned(),
        Request::UnpinCopy(copy) => format!("unpin copy {copy}"),
        Request::DirtyExport(copy) => format!("rescue --number {copy}"),
        Request::DirtyDrop(copy) => format!("rescue --number {copy} --drop"),
        Request::SetLimit { job, user, rate_bytes_per_s } => {
            let rate = rate_bytes_per_s.map_or("none".to_owned(), |rate| format!("{rate}B/s"));
            let user = user.map_or(String::new(), |user| format!(" --user {user}"));
            format!("limit {job} {rate}{user}")
        }
        Request::SetLog { filter, at_coordinator } if !filter.is_empty() => {
            format!("log {filter}{}", if *at_coordinator { " --coordinator" } else { "" })
        }
        _ => return None,
    })
}

impl Connection {
    /// Answers a request; for what it reports about a job, `reported` is its size and the room for
    /// it.
    pub fn answer(
        &mut self,
        request: Request,
        fds: Vec<Sent>,
        reported: Option<(Size, Reservation)>,
    ) -> Answer {
        let command = administrative(&request);
        let answer = self.dispatch(request, fds, reported);
        if let Some(command) = command {
            let result = match &answer {
                Some((Reply::Refused(refusal), _)) => format!("refused: {refusal}"),
                Some((Reply::Failed { message, .. }, _)) => format!("failed: {message}"),
                Some((Reply::Evicted { bytes, .. }, _)) => format!("done, {bytes} bytes released"),
                _ => "done".to_owned(),
            };
            let by = (self.peer, self.node.shares.is_operator(self.peer.uid));
            self.node.audit.note(by, &command, &result);
        }
        answer
    }

    fn dispatch(
        &mut self,
        request: Request,
        mut fds: Vec<Sent>,
        reported: Option<(Size, Reservation)>,
    ) -> Answer {
        match request {
            Request::Mounts => reply(Reply::Mounts(self.node.mounts.iter().map(|m| m.info()).collect())),
            Request::Open => self.with_file(fds, |c, file, fd| open::open(c, file, &fd)),
            Request::Fetch { version, copy, offset, len, deadline_ms, ahead } => {
                let deadline = Instant::now() + Duration::from_millis(deadline_ms.into());
                let wanted = miss::Wanted { version, copy, offset, len, deadline, ahead };
                self.with_file(fds, |c, file, fd| miss::fetch(c, file, fd, &wanted))
            }
            Request::Prefetch { version, runs } => {
                self.one_way(fds, |c, file, fd| miss::prefetch(c, file, fd, &version, &runs))
            }
            Request::Missed { version, page, bytes } => {
                if let (Some(sent), true) = (fds.pop(), fds.is_empty()) {
                    miss::missed(self, sent, &version, page, bytes);
                }
                None
            }
            Request::PinPages { copy, first_page, pages } => {
                pins::pin_pages(self, fds, copy, first_page, pages)
            }
            Request::PinFile(on) => self.with_file(fds, |c, file, fd| pins::pin_file(c, file, &fd, on)),
            Request::UnpinCopy(copy) => pins::unpin_copy(self, copy),
            Request::EvictFile => self.with_file(fds, |c, file, _| admin::evict_file(c, file)),
            Request::SetJob(job) => {
                traffic::set_job(self, &job);
                None
            }
            Request::SetLimit { job, user, rate_bytes_per_s } => {
                traffic::set_limit(self, job, user, rate_bytes_per_s)
            }
            Request::Limits => traffic::limits(self),
            Request::MayPass { bytes } => traffic::may_pass(self, bytes),
            Request::SetLog { filter, at_coordinator } => traffic::set_log(self, filter, at_coordinator),
            Request::LastLog => traffic::last_log(self),
            Request::EvictAll => admin::evict_all(self),
            Request::LoadBegin { rate_bytes_per_s } => loads::begin(self, rate_bytes_per_s),
            Request::LoadFiles { first_index } => loads::files(self, first_index, fds),
            Request::LoadPoll { wait_ms } => loads::poll(self, wait_ms),
            Request::LoadCancel => loads::cancel(self),
            Request::StageBegin => write::begin(self),
            Request::StagePage { slot, page, len } => {
                write::page(self, slot, page, len);
                None
            }
            Request::StageCommit { version } => {
                let answer = self.with_writer(fds, |c, file, fd, _| write::commit(c, file, &fd, &version));
                self.stage = None;
                answer
            }
            Request::StageAbort => {
                self.stage = None;
                reply(Reply::Done)
            }
            Request::Absorb { is_wanted, flags, truncated, job, owner, guest } => {
                let opening = Opening { flags: OFlags::from_bits_retain(flags), truncated, guest };
                self.with_writer(fds, |c, file, _, writing| {
                    dirty::absorb(c, &file, writing, (owner, job.as_deref()), is_wanted, opening)
                })
            }
            Request::SetClass(class) => {
                self.with_writer(fds, |c, file, _, writing| layout::set_class(c, &file, &writing, &class))
            }
            Request::GuestOpen { truncated, resumes, caller } => self
                .with_writer(fds, |c, file, _, writing| {
                    guest::open(c, &file, &writing, (truncated, caller), resumes)
                }),
            Request::GuestCall(call) => guest::call(self, call),
            Request::CheckpointRule(rule) => checkpoints::set_rule(self, rule),
            Request::CheckpointMarkers(selectors) => checkpoints::wait_for_markers(self, &selectors),
            Request::CheckpointList => checkpoints::list(self),
            Request::DirtyRoom { copy, bytes } => dirty::make_room(self, copy, bytes),
            Request::CallIn(copy) => dirty::call_in(self, copy),
            Request::DirtySync => dirty::sync(self, fds),
            Request::DirtyKeep { copy, second } => dirty::keep(self, copy, second),
            Request::DirtyStat { dev, ino } => dirty::stat(self, dev, ino),
            Request::DirtyTimes { dev, ino, mtime_ns } => dirty::note_times(self, (dev, ino), mtime_ns),
            Request::OpenNewest if fds.is_empty() => dirty::wait_for_newest(self),
            Request::OpenNewest => self.with_file(fds, |c, file, fd| dirty::open_newest(c, &file, fd)),
            Request::DirtyList { after } => dirty::list(self, after),
            Request::DirtyExport(copy) => dirty::export(self, copy),
            Request::DirtyDrop(copy) => dirty::discard(self, copy),
            Request::JobBegin { .. } => scratch::begin(self),
            Request::ScratchCreate { job, name, exclusive } => scratch::create(self, &job, name, exclusive),
            Request::ScratchReserve { copy, bytes } => scratch::reserve(self, copy, bytes),
            Request::ScratchOpen { job, name } => scratch::open(self, &job, &name),
            Request::ScratchRemove { job, name } => scratch::remove(self, &job, &name),
            Request::ScratchList { job, after } => scratch::list(self, &job, &after),
            Request::ImageKeep { job, name, tree } => scratch::keep_image(self, &job, &name, tree),
            Request::ImageOpen { tree } => scratch::open_image(self, &tree),
            Request::ShuffleBegin => shuffle::begin(self),
            Request::ShuffleResume { app, shuffles } => shuffle::resume(self, app, shuffles),
            Request::ShuffleJoin(app) => shuffle::join(self, app),
            Request::ShuffleLives { shuffle, lives } => shuffle::set_lives(self, shuffle, lives),
            Request::ShuffleRemove { token, shuffle } => shuffle::remove(self, &token, shuffle),
            Request::NodesAt { hosts, with_second } => shuffle::nodes_at(self, &hosts, with_second),
            Request::ShuffleCopy { token, shuffle, map } => shuffle::copy(self, &token, (shuffle, map)),
            Request::ShuffleFetch { app, nodes, blocks, deadline_ms } => {
                shuffle::fetch(self, &app, &nodes, &blocks, deadline_ms)
            }
            Request::List { after } => admin::list(self, after),
            Request::Status => reply(Reply::Status(Box::new(admin::status(&self.node)))),
            Request::SetCapacity { bytes } => admin::set_capacity(self, bytes),
            Request::Memory => reply(Reply::Memory(Box::new(self.node.control.status()))),
            Request::Shutdown => admin::shutdown(self),
            Request::Members => reply(Reply::Members(self.node.cluster.view().cluster.clone())),
            Request::StorageHosts => reply(Reply::StorageHosts(self.node.cluster.storage_hosts())),
            Request::HpcOpen(job) => phases::open(self, job),
            Request::HpcBegin { bytes, deadline_ns } => phases::begin(self, bytes, deadline_ns),
            Request::HpcProgress { bytes } => {
                self.node.phases.progress(self.id, bytes);
                None
            }
            Request::HpcEnd => phases::end(self),
            Request::HpcServers(servers) => phases::writes_to(self, servers),
            Request::HpcObserve => phases::observe(self),
            Request::HpcJobs => phases::list(&self.node),
            Request::FetchToMap { version } => {
                self.one_way(fds, |c, file, fd| miss::fetch_to_map(c, file, fd, &version))
            }
            Request::AskCoordinator(question) => jobs::ask_coordinator(self, question),
            Request::TaskAsks { job, stage, partition } => jobs::task_asks(self, job, stage, partition),
            Request::JobUpdates(updates) => match reported {
                Some(reported) => jobs::report(self, updates, reported),
                None => reply(Reply::Refused(Refusal::NoRoom)),
            },
        }
    }

    /// Admits the one descriptor that came with a request and continues with it.
    fn with_file(
        &mut self,
        mut fds: Vec<Sent>,
        go_on: impl FnOnce(&mut Self, Admitted, OwnedFd) -> Answer,
    ) -> Answer {
        let (Some(Sent { fd, place }), true) = (fds.pop(), fds.is_empty()) else {
            return reply(Reply::Refused(Refusal::NoDescriptor));
        };
        match admit_at(&self.node.mounts, fd.as_fd(), &place) {
            Ok(file) => go_on(self, file, fd),
            Err(NoFile::Refused(refusal)) => reply(Reply::Refused(refusal)),
            Err(NoFile::Pfs(e)) => reply(Reply::Failed {
                errno: e.raw_os_error().unwrap_or(libc::EIO),
                message: format!("the file system did not return the file's attributes: {e}"),
            }),
        }
    }

    /// As [`Connection::with_file`], for two descriptors: a user who may only read a file must not
    /// say what is in it.
    fn with_writer(
        &mut self,
        mut fds: Vec<Sent>,
        go_on: impl FnOnce(&mut Self, Admitted, OwnedFd, OwnedFd) -> Answer,
    ) -> Answer {
        let (Some(writing), 1) = (fds.pop(), fds.len()) else {
            return reply(Reply::Refused(Refusal::NoDescriptor));
        };
        self.with_file(fds, |c, file, fd| match require_writer(writing.fd.as_fd(), &file.facts) {
            Ok(()) => go_on(c, file, fd, writing.fd),
            Err(refusal) => reply(Reply::Refused(refusal)),
        })
    }

    fn one_way(&mut self, fds: Vec<Sent>, go_on: impl FnOnce(&mut Self, Admitted, OwnedFd)) -> Answer {
        self.with_file(fds, |c, file, fd| {
            go_on(c, file, fd);
            None
        });
        None
    }
}
