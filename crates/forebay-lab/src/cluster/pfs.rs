//! The file systems a lab can have, and what is common to them: servers are started, clients mount,
//! and a file is written to check that it all works.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use super::kind::PfsKind;
use super::plan::{Place, Role};
use super::process::wait_until;
use super::service::Raising;
use super::{PATIENCE, cephfs, glusterfs, moosefs, space};
use crate::{LabError, mountinfo};

impl PfsKind {
    /// Programs that are needed, each with the Debian package it comes from.
    pub fn programs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Moosefs => moosefs::PROGRAMS,
            Self::Glusterfs => glusterfs::PROGRAMS,
            Self::Cephfs => cephfs::PROGRAMS,
        }
    }

    /// How far two changes must be apart for their time stamps to differ, in milliseconds.
    pub fn stamp_granularity_ms(self) -> u64 {
        match self {
            // Whole seconds, and the server's clock is read some time before the write is complete.
            Self::Moosefs => 2000,
            Self::Glusterfs | Self::Cephfs => 20,
        }
    }

    /// Whether nodes of this role keep data of the file system.
    pub fn stores_on(self, role: Role) -> bool {
        match role {
            Role::Server => true,
            Role::Head => self == Self::Cephfs,
            Role::Compute | Role::Writer => false,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Moosefs => "moosefs",
            Self::Glusterfs => "glusterfs",
            Self::Cephfs => "cephfs",
        }
    }
}

/// Checks whether files of this file system can be spread in pieces of this size.
///
/// # Errors
/// If they cannot, with the possible sizes.
pub fn check_stripe(kind: PfsKind, stripe_bytes: Option<u64>) -> Result<(), LabError> {
    match (kind, stripe_bytes) {
        (_, None) => Ok(()),
        (PfsKind::Glusterfs, Some(bytes)) => glusterfs::check_stripe(bytes),
        (PfsKind::Moosefs, Some(_)) => {
            Err(LabError::new("--stripe is for GlusterFS: files of MooseFS are always in chunks of 64 MiB"))
        }
        (PfsKind::Cephfs, Some(_)) => {
            Err(LabError::new("--stripe is for GlusterFS: files of CephFS are in objects of 4 MiB here"))
        }
    }
}

/// Starts the servers, mounts the file system on all compute nodes and writers, and checks that it
/// can be written.
///
/// # Errors
/// If something does not come up, with the end of its log.
pub fn raise(lab: &mut Raising) -> Result<(), LabError> {
    match lab.record.pfs {
        PfsKind::Moosefs => moosefs::start_servers(lab)?,
        PfsKind::Glusterfs => glusterfs::start_servers(lab)?,
        PfsKind::Cephfs => cephfs::start_servers(lab)?,
    }
    let clients = lab.mounting();
    for client in &clients {
        let command = match lab.record.pfs {
            PfsKind::Moosefs => moosefs::mount(&lab.record),
            PfsKind::Glusterfs => glusterfs::mount(&lab.record),
            PfsKind::Cephfs => cephfs::mount(&lab.record),
        };
        lab.start(client, &mount_service(client), command)?;
    }
    for client in &clients {
        let (holder, place) = (lab.record.holder(client)?, lab.record.place.clone());
        let mounted = || space::inside(holder, || Ok(is_mounted(&place))).unwrap_or(false);
        lab.wait_for(&mount_service(client), PATIENCE, mounted)?;
    }
    if lab.record.pfs == PfsKind::Moosefs {
        moosefs::settle(&lab.record, &clients[0])?;
    }
    try_writing(lab, &clients[0])
}

/// Name of the service that is a node's client of the file system.
pub fn mount_service(node: &str) -> String {
    format!("mount-{node}")
}

/// Whether the calling thread sees the file system mounted.
pub fn is_mounted(place: &Place) -> bool {
    let pfs = place.pfs();
    mountinfo::read().iter().any(|mount| mount.mount_point == pfs && mount.fs_type.starts_with("fuse"))
}

/// Writes files until that works: servers that have just met may refuse the first files for some
/// seconds. One file for each server and some more, since nobody can predict on which server a file
/// will be placed.
fn try_writing(lab: &mut Raising, client: &str) -> Result<(), LabError> {
    let holder = lab.record.holder(client)?;
    let pfs = lab.record.place.pfs();
    let files = 2 * lab.names(Role::Server).len();
    space::inside(holder, || {
        // Anybody may write there, as on a scratch file system.
        fs::set_permissions(&pfs, fs::Permissions::from_mode(0o1777))
            .map_err(|e| LabError::io(format!("cannot open {} to all users", pfs.display()), e))?;
        let mut problem = None;
        let written = wait_until(PATIENCE, || {
            let tried = (0..files).try_for_each(|i| {
                let path = pfs.join(format!(".forebay-lab-{i}"));
                File::create(&path)
                    .and_then(|mut file| file.write_all(&[7; 4096]).and_then(|()| file.sync_all()))
                    .and_then(|()| fs::remove_file(&path))
            });
            problem = tried.err();
            problem.is_none()
        });
        match problem {
            Some(problem) if !written => Err(LabError::io(
                format!("the file system is mounted, but nothing can be written to {}", pfs.display()),
                problem,
            )),
            _ => Ok(()),
        }
    })
}
