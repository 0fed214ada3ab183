//! The client core: the library below every binding of Forebay.
//!
//! A program opens a path of the PFS as it always does; the core opens it with the program's own
//! rights and shows the descriptor to the node's agent. From then on a read of cached bytes is one
//! copy out of shared memory, without any call (`read`); what is missing is fetched by the agent or
//! read from the PFS directly, whichever hurts less. Without an agent, or with a dead or slow one,
//! everything is read from the PFS, and the program hears of it once (`session`).
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! let client = forebay_client::Client::from_env();
//! let file = client.open("/pfs/data/part-0001")?;
//! let mut buffer = vec![0; 1 << 20];
//! let n = file.read_at(&mut buffer, 0)?;
//! # Ok(()) }
//! ```

pub mod admin;
mod agent_process;
pub mod broadcast;
pub mod checkpoints;
mod cluster_view;
mod descriptor_place;
pub mod dirty;
pub mod error;
mod fork_safe;
pub mod guest;
pub mod hpc;
pub mod image;
pub mod job;
mod known_storage;
pub mod layout;
pub mod load;
mod lock;
pub mod map;
pub mod order;
pub mod read;
pub mod session;
pub mod shuffle;
mod stamp;
mod storage;
mod version_check;
mod watch;
pub mod write;

pub use admin::Admin;
pub use agent_process::AgentProcess;
pub use broadcast::{Broadcast, BroadcastProgress};
pub use descriptor_place::Place;
pub use dirty::{Absorbed, Bytes, Target};
pub use error::{errno, is_no_agent};
pub use forebay_pfs::mount::same_file;
pub use forebay_wire::{Burst, GUEST_BYTES, GuestMode};
pub use hpc::{HpcJob, HpcJobOptions};
pub use image::NewImage;
pub use job::{Job, Location};
pub use layout::Hint;
pub use load::{Load, LoadFailure};
pub use map::MappedRange;
pub use order::{Item, Order};
pub use read::{FetchToMap, File, ReadMode, Served};
pub use session::{Client, ClientConfig, second_place};
pub use shuffle::{Fetched, MapOutput, Shuffles};
pub use stamp::stamp_written;
pub use write::{FileWriter, WriteMode, WriteOptions};

/// Unit of placement and of `stat`'s listing: 128 MiB.
pub const EXTENT_BYTES: u64 = 128 << 20;
