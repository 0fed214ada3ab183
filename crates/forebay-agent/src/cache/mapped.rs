//! Pages that programs map. `pins.rs` keeps them in place.

use super::entry::Entry;
use crate::user_limits::Share;
use forebay_store::copy::CopyFile;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Pages of one copy that programs of one user map. The kernel knows for how long
/// ([`CopyFile::share_to_map`]).
#[derive(Debug)]
pub struct Mapped {
    /// The copy.
    pub entry: Arc<Entry>,
    /// The pages.
    pub pages: BTreeSet<u32>,
    /// What they take of the user's share; `None` if an earlier agent let them map.
    pub share: Option<Share>,
}

impl Mapped {
    /// The mapped pages of `entry`, none yet.
    pub fn none_of(entry: &Arc<Entry>) -> Self {
        Mapped { entry: entry.clone(), pages: BTreeSet::new(), share: None }
    }

    /// The first and the last page.
    pub fn ends(&self) -> Option<(u32, u32)> {
        ends(&self.pages)
    }
}

/// Number of a copy and a user; no user if an earlier agent let its clients map.
pub type MappedKey = (u64, Option<u32>);

/// The pages of an adopted copy that a client may still map: those that the earlier agent let one
/// map and that are still locked. The mark of the others is removed.
pub fn still_mapped(file: &CopyFile, resident: &[u32]) -> BTreeSet<u32> {
    let mut mapped: BTreeSet<u32> = resident.iter().copied().filter(|page| file.word(*page).mapped).collect();
    let Some((first, last)) = ends(&mapped) else { return mapped };
    for page in file.unmapped(first..last + 1).unwrap_or_default().into_iter().flatten() {
        if mapped.remove(&page) {
            file.set_mapped(page, false);
        }
    }
    mapped
}

fn ends(pages: &BTreeSet<u32>) -> Option<(u32, u32)> {
    Some((*pages.first()?, *pages.last()?))
}
