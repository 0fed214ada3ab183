//! What programs may do on a mount, besides the modes of files: options, locks, capabilities, ACLs,
//! reserved blocks.

use crate::intercept::has;
use crate::mount::{Mount, mount_options, pfs_to_mount, same_with, transcript, with_own_mounts_say};

#[test]
fn a_readers_lock_opens_the_file_for_no_writer() {
    same_with("locks_of_readers", &[]);
}

#[test]
fn access_and_chdir_ask_for_the_rights_that_they_mean() {
    same_with("without_effective_capabilities", &[]);
}

#[test]
fn birth_times_are_those_of_the_pfs() {
    same_with("birth_times", &[]);
}

#[test]
fn a_removed_current_directory_does_not_become_another() {
    let Some((pfs, mount)) = Mount::without_agent() else { return };
    let said = transcript("a_removed_current_directory", &mount.at, pfs.path());
    assert_eq!(said, "the number is reused True\nrefused True\n[] []\n");
}

#[test]
fn where_the_kernel_caches_names_each_user_has_the_rights_that_the_pfs_gives() {
    for case in ["an_acl_that_denies", "acls", "rights"] {
        same_with(case, &["--attr-timeout", "60"]);
    }
}

#[test]
fn of_opposite_options_the_last_wins() {
    let Some(pfs) = pfs_to_mount() else { return };
    for (options, has_it) in [
        ("suid,nosuid", ["rw", "nosuid", "nodev"]),
        ("nosuid,suid,nodev,dev", ["rw", "", ""]),
        ("dev,ro,rw,nodev", ["rw", "nosuid", "nodev"]),
        ("rw,ro,exec,noexec", ["ro", "noexec", "nodev"]),
        ("noexec,exec", ["rw", "nosuid", "nodev"]),
    ] {
        let mount = Mount::new(pfs.path(), "none", &["-o", options]);
        let (of_mount, _) = mount_options(&mount);
        let words: Vec<_> = of_mount.split(',').collect();
        for option in ["ro", "rw", "nosuid", "nodev", "noexec"] {
            let wanted = has_it.contains(&option) || option == "nosuid" && options.starts_with("rw,");
            assert_eq!(words.contains(&option), wanted, "{options}: {of_mount}");
        }
    }
}

#[test]
fn stores_to_a_mapping_take_no_blocks_that_are_reserved_for_root() {
    if !has("mkfs.ext4") {
        return;
    }
    with_own_mounts_say(
        "truncate -s 64M /mnt/disk
mkfs.ext4 -q -m 40 -O ^has_journal /mnt/disk
mkdir -m 777 /mnt/small
mount -o loop /mnt/disk /mnt/small
chmod 777 /mnt/small
$F mount /mnt/small /mnt/at
python3 -c '
import mmap, os
os.setgroups([])
os.setresgid(61001, 61001, 61001)
os.setresuid(61001, 61001, 61001)
fd = os.open(\"/mnt/at/f\", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
size = 60 << 20
os.ftruncate(fd, size)
mapped = mmap.mmap(fd, size)
refused = 0
for at in range(0, size, 1 << 20):
    mapped[at : at + (1 << 20)] = b\"x\" * (1 << 20)
    try:
        mapped.flush(at, 1 << 20)
    except OSError:
        refused += 1
s = os.statvfs(\"/mnt/small\")
print(refused > 0, s.f_bavail < 1000, s.f_bfree > s.f_blocks // 4)
os._exit(0)'
$F umount /mnt/at
umount /mnt/small",
        "True True True\n",
    );
}
