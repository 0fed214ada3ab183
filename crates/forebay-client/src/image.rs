//! Images of frozen trees: memory-only files that the agent keeps for their user beyond the job.
//!
//! An image has what its writer was allowed to read, and the agent hands it to the same user only.
//! What is in it, and whether it is still right, is the business of its writer and reader
//! (`forebay-mount`).

use crate::error::with_message;
use crate::session::{Client, unexpected};
use forebay_wire::{Reply, Request};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An image that is being written; dropping it gives it up with the job.
#[derive(Debug)]
pub struct NewImage {
    client: Client,
    file: OwnedFd,
    copy: u64,
    job: String,
    name: Vec<u8>,
}

impl Client {
    /// The image that this user has last kept under `tree`.
    ///
    /// # Errors
    /// No agent, or it does not answer.
    pub fn image(&self, tree: &[u8]) -> io::Result<Option<(OwnedFd, u64)>> {
        let answer = self.session.call(
            &Request::ImageOpen { tree: tree.to_vec() },
            &[],
            self.session.config.deadline,
        )?;
        match (answer.message, answer.fds.into_iter().next()) {
            (Reply::Scratch { size, .. }, Some(file)) => Ok(Some((file, size))),
            (Reply::Failed { errno: libc::ENOENT, .. }, _) => Ok(None),
            (reply, _) => Err(unexpected(&reply)),
        }
    }

    /// Begins an image of `tree` with room for `bytes`.
    ///
    /// # Errors
    /// No agent, or it has no room, or the user's share is used up.
    pub fn new_image(&self, tree: &[u8], bytes: u64) -> io::Result<NewImage> {
        let job = self.session.job()?;
        // No path: see `Client::scratch_files`.
        let name = [b"image of ", tree].concat();
        let request = Request::ScratchCreate { job: job.clone(), name: name.clone(), exclusive: false };
        let answer = self.session.call(&request, &[], self.session.config.deadline)?;
        let (Reply::Scratch { copy, .. }, Some(file)) = (&answer.message, answer.fds.into_iter().next())
        else {
            return Err(unexpected(&answer.message));
        };
        let image = NewImage { client: self.clone(), file, copy: *copy, job, name };
        image.ask(&Request::ScratchReserve { copy: image.copy, bytes })?;
        Ok(image)
    }
}

impl NewImage {
    fn ask(&self, request: &Request) -> io::Result<()> {
        let session = &self.client.session;
        match session.call(request, &[], session.config.deadline)?.message {
            Reply::Done => Ok(()),
            Reply::Refused(refusal) => Err(with_message(libc::ENOSPC, refusal.to_string())),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Has the agent keep the image, of `bytes`, in place of the one that it has. The descriptor is
    /// for reading from now on.
    ///
    /// # Errors
    /// The agent refuses. The descriptor can still be used by this process.
    pub fn keep(self, tree: &[u8], bytes: u64) -> (OwnedFd, io::Result<()>) {
        let kept = self.ask(&Request::ScratchReserve { copy: self.copy, bytes }).and_then(|()| {
            let (job, name) = (self.job.clone(), self.name.clone());
            self.ask(&Request::ImageKeep { job, name, tree: tree.to_vec() })
        });
        (self.file, kept)
    }
}

impl AsFd for NewImage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
