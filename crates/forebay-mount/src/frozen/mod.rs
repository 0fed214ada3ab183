//! Trees that a job declares unchanging: after one walk at the start, names, attributes and
//! contents cost no request to the PFS.
//!
//! | file | contents |
//! | --- | --- |
//! | `tree` | names, attributes, and where each content is in the image |
//! | `walk` | takes a tree from the PFS with many threads, and compares it with an earlier image |
//! | `image` | what a run leaves in the agent's memory for the next one |
//! | `state` | what the job itself has changed since, and open files |
//!
//! `frozen_answers.rs` has the kernel's requests that need no PFS.
//!
//! **Rights.** The walk and all requests have the rights of one user, so the mount is private: any
//! other caller gets `EACCES`. What the user may not list or read is not in the tree; requests for
//! it go to the PFS, which refuses them.
//!
//! **Versions.** A file's content is kept with the attributes that it had before and after it was
//! read, and a directory's names with those from before it was listed. The walk of a later run
//! takes again what has other attributes or was racily clean then.
//!
//! **The job's own changes.** Each call that may change a file takes its attributes, its content or
//! its name out of the tree first; from then on the PFS answers.

mod image;
mod state;
pub mod tree;
mod walk;

pub use state::{Frozen, is_number};

/// The message that says why a tree is not frozen.
pub type Why = String;
