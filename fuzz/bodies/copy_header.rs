//! A new agent adopts what it finds in the tier, and an old one may have died, or its machine's
//! memory may have gone bad, at any byte: a copy with its record is whole or it is refused. Shared
//! by the fuzzer and the ordinary tests of `forebay-store`.

use forebay_pfs::FileVersion;
use forebay_store::{CopyFile, CopyIdentity, CopyView, Tier, Word};
use std::path::{Path, PathBuf};

/// Number of the copy that is tampered with.
pub const COPY: u64 = 5;

/// Bytes of the header, which stands at the start of the record.
const HEADER_BYTES: usize = 128;

/// Where the header says how long the file is.
const SIZE_AT: usize = 16;

/// Adopts a record of these bytes as an agent does, with a copy of the size that it names; returns
/// whether they were taken for a copy.
pub fn check(record: &[u8]) -> bool {
    let (dir, tier) = Tier::for_tests();
    let [copy, path] = new_copy(&dir, &tier, &identity(1));
    std::fs::write(path, record).expect("the record can be written");
    if let Some(size) = record.get(SIZE_AT..SIZE_AT + 8) {
        let size = u64::from_le_bytes(size.try_into().expect("eight bytes"));
        let copy = std::fs::File::options().write(true).open(copy).expect("the copy can be opened");
        // A file of most sizes cannot be; then the record is of another one.
        let _ = copy.set_len(size);
    }
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
    data.resize(data.len().max(HEADER_BYTES), 0);
    data[..8].copy_from_slice(&COPY.to_le_bytes());
    data[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(b"fb-copy4");
    data
}

/// A good record with `data` laid over its start, bit by bit: no data, or zeros, leave it good.
pub fn overlaid(good: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    bytes.iter_mut().zip(data).for_each(|(byte, flip)| *byte ^= flip);
    bytes
}

/// The record of a good copy of a file of `size` bytes, all of it resident.
pub fn good_record(size: u64) -> Vec<u8> {
    let (dir, tier) = Tier::for_tests();
    let [_, record] = new_copy(&dir, &tier, &identity(size));
    let (_, copy) = CopyFile::open(&tier, COPY).expect("a new copy can be opened");
    for page in 0..copy.geometry().pages() as u32 {
        let absent = copy.word(page);
        let blocks = copy.geometry().page_len(page).div_ceil(forebay_store::BLOCK_BYTES) as u32;
        let resident = Word { valid_blocks: blocks, state: forebay_store::State::Resident, ..absent };
        assert!(copy.change(page, absent, resident));
    }
    std::fs::read(record).expect("the record can be read")
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

/// Makes a copy and returns where it and its record are.
fn new_copy(dir: &Path, tier: &Tier, identity: &CopyIdentity) -> [PathBuf; 2] {
    drop(CopyFile::create(tier, identity).expect("a copy can be made"));
    ["", ".record"].map(|suffix| dir.join(format!("tier/copies/{COPY:016x}{suffix}")))
}
