# Runs one page's commands as root of a machine that exists only for them: own /tmp, /run, /etc,
# /dev/shm, home directory, processes and loopback network. Started inside new namespaces; all of it
# ends with this process.
#
# sandbox.sh ROOT REPOSITORY PROGRAM SESSION

set -eu
root=$1 repository=$2 program=$3 session=$4

mount -t tmpfs -o mode=755 tmpfs "$root"
for entry in /*; do
    name=${entry#/}
    case $name in
    tmp | run | home | proc | sys | lost+found) ;;
    etc) cp -a /etc "$root/etc" ;;
    *)
        if [ -L "$entry" ]; then
            cp -a "$entry" "$root/$name"
        elif [ -d "$entry" ]; then
            mkdir "$root/$name"
            mount --rbind "$entry" "$root/$name"
        fi
        ;;
    esac
done

mkdir -p "$root/proc" "$root/sys" "$root/tmp" "$root/run/lock" "$root/home/me/forebay/target/release" "$root/lustre/project/input"
mkdir "$root/opt-repository" "$root/opt-session" "$root/opt-program"
chmod 1777 "$root/tmp"
mount -t proc proc "$root/proc"
# The host's would show the host's network interfaces.
mount -t sysfs sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
# Before the new /tmp and /home hide what may lie there.
mount --rbind "$repository" "$root/opt-repository"
mount --bind "$session" "$root/opt-session"
mount --bind "$(dirname "$program")" "$root/opt-program"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ip link set lo up
hostname n1

# The reader's clone: files are the repository's, what a command writes is not.
for entry in "$repository"/*; do
    name=$(basename "$entry")
    [ "$name" = target ] || ln -s "/opt-repository/$name" "$root/home/me/forebay/$name"
done
for name in forebay forebay-sim forebay-lab; do
    ln -s "/opt-program/$name" "$root/home/me/forebay/target/release/$name"
done
for library in libforebay.a libforebay.so libforebay_preload.so; do
    ln -s "/opt-program/deps/$library" "$root/home/me/forebay/target/release/$library"
done
mkdir "$root/home/me/bin"
ln -s /home/me/forebay/target/release/forebay "$root/home/me/bin/forebay"
# Root needs no sudo, and it is not installed everywhere.
printf '#!/bin/sh\nexec "$@"\n' >"$root/home/me/bin/sudo"
chmod 755 "$root/home/me/bin/sudo"

# Not chroot: who enters the mount namespace again, as the lab does, would find itself outside.
mkdir "$root/old"
cd "$root"
pivot_root . old
umount --lazy /old
rmdir /old

# The program is a link to where the tests were built; the library is not beside that.
exec env -i PATH="/home/me/bin:$PATH" HOME=/home/me USER=root LC_ALL=C.UTF-8 TERM=dumb \
    FOREBAY_PRELOAD=/home/me/forebay/target/release/libforebay_preload.so \
    /bin/bash --noprofile --norc -c '
        cd ~/forebay
        # A command fails with any part of its pipe.
        set -o pipefail
        for command in /opt-session/*.sh; do
            { . "$command"; } >"${command%.sh}.out" 2>&1 </dev/null
            status=$?
            echo $status >"${command%.sh}.status"
            [ $status = 0 ] || exit 1
        done'
