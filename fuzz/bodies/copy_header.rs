//! A new agent adopts what it finds in the tier, and an old one may have died, or its machine's
//! memory may have gone bad, at any byte: a file is a whole copy or it is refused. Shared by the
//! fuzzer and the ordinary tests of `forebay-store`.

use forebay_pfs::FileVersion;
use forebay_store::{CopyFile, CopyIdentity, CopyView, Tier, Word};
use std::path::{Path, PathBuf};

/// Number of the copy that is tampered with.
pub const COPY: u64 = 5;

/// Bytes of the header, which stands at the end of the file.
const HEADER_BYTES: usize = 128;

/// Adopts a file of these bytes as an agent does; returns whether it was taken for a copy.
pub fn check(data: &[u8]) -> bool {
    let (dir, tier) = Tier::for_tests();
    let path = new_copy(&dir, &tier, &identity(1));
    std::fs::write(path, data).expect("the file can be written");
    adopt(&tier)
}

/// Does to copy [`COPY`] what an agent does to one it adopts, and what its readers do then.
fn adopt(tier: &Tier) -> bool {
    let Ok((identity, copy)) = CopyFile::open(tier, COPY) else { return false };
    assert_eq!(identity.copy, COPY);
    let geometry = copy.geometry();
    assert_eq!((geometry.size, geometry.page_bytes), (identity.version.size, identity.page_bytes));
    copy.settle().expect("half-done pages can be released");
    let shared = copy.share(tier, COPY).expect("the copy can be shared");
    let view =
        CopyView::new(shared, COPY, geometry).expect("what the agent takes for a copy is one for a reader");
    let mut buffer = vec![0; 1 << 16];
    for page in 0..geometry.pages() as u32 {
        let start = u64::from(page) * geometry.page_bytes;
        let got = view.read_at(&mut buffer, start).expect("a copy can be read");
        assert!(got as u64 <= geometry.size - start, "a read went beyond the end");
        copy.withdraw(page);
        copy.punch(page, 1).expect("a page can be released");
    }
    copy.set_flag(1, true);
    assert_eq!(copy.flags() & 1, 1);
    true
}

/// `data` with the marks at both ends of the header that keep most inputs from getting any further:
/// its number and its magic.
pub fn labelled(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    let len = data.len().max(HEADER_BYTES);
    data.resize(len, 0);
    let header = len - HEADER_BYTES;
    data[header..header + 8].copy_from_slice(&COPY.to_le_bytes());
    data[len - 8..].copy_from_slice(b"fb-copy1");
    data
}

/// A good copy with `data` laid over its end, bit by bit: no data, or zeros, leave it good.
pub fn overlaid(good: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    bytes.iter_mut().rev().zip(data).for_each(|(byte, flip)| *byte ^= flip);
    bytes
}

/// The bytes of a good copy of a file of `size` bytes, all of it resident.
pub fn good_copy(size: u64) -> Vec<u8> {
    let (dir, tier) = Tier::for_tests();
    let path = new_copy(&dir, &tier, &identity(size));
    let (_, copy) = CopyFile::open(&tier, COPY).expect("a new copy can be opened");
    for page in 0..copy.geometry().pages() as u32 {
        let absent = copy.word(page);
        let blocks = copy.geometry().page_len(page).div_ceil(forebay_store::BLOCK_BYTES) as u32;
        let resident = Word { valid_blocks: blocks, state: forebay_store::State::Resident, ..absent };
        assert!(copy.change(page, absent, resident));
    }
    std::fs::read(path).expect("the copy can be read")
}

fn identity(size: u64) -> CopyIdentity {
    CopyIdentity {
        copy: COPY,
        mount: "mount".into(),
        path: b"some/path".to_vec(),
        owner_uid: 0,
        version: FileVersion { ino: 1, size, mtime_ns: 2, ctime_ns: 3 },
        page_bytes: 8192,
    }
}

/// Makes a copy and returns where it is, without knowing how the tier names its files.
fn new_copy(dir: &Path, tier: &Tier, identity: &CopyIdentity) -> PathBuf {
    drop(CopyFile::create(tier, identity).expect("a copy can be made"));
    let mut files = std::fs::read_dir(dir.join("tier/copies")).expect("the tier's directory can be read");
    files.next().expect("the copy is there").expect("the copy has a name").path()
}
