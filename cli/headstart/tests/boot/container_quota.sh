#!/bin/bash
# Runs in an emulated guest as its first process, from the disk that kernel_devices.rs makes: containerd and the
# snapshotter have their snapshots on an ext4 with project quotas, and what containers write is limited. Says what came
# of it on the serial port.
here=$(cd "$(dirname "$0")" && pwd)
headstart=$here/headstart

end() {
    echo "GUEST $*"
    sleep 1
    echo b >/proc/sysrq-trigger
    sleep 60
}
failed() {
    tail -n 20 ./*.log
    end "failed: $*"
}

mountpoint -q /proc || mount -t proc proc /proc
mountpoint -q /sys || mount -t sysfs sys /sys
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
export HOME=/tmp XDG_CACHE_HOME=/tmp PATH=$here:$PATH
cd /tmp || end "failed: no directory"
for module in loop overlay quota_v2; do modprobe $module || end "failed: no $module"; done

mkdir root
cp "$here/quota.raw" quota.raw
mount -o loop,prjquota quota.raw root || end "failed: not mounted"

"$headstart" agent --dir /tmp/agent --cache /tmp/cache >agent.log 2>&1 &
until [ -S agent/agent.sock ]; do sleep 0.2; done
start_snapshotter() {
    "$headstart" snapshotter --root /tmp/root/snapshots --socket /tmp/snapshotter.sock --agent agent/agent.sock \
        --container-quota 4M >>snapshotter.log 2>&1 &
    snapshotter=$!
    until grep -qs . snapshotter.log && [ -S snapshotter.sock ]; do sleep 0.2; done
}
start_snapshotter
cat >containerd.toml <<'CONFIG'
version = 2
root = "/tmp/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "/run/containerd.sock"
[proxy_plugins.headstart]
type = "snapshot"
address = "/tmp/snapshotter.sock"
CONFIG
containerd --config containerd.toml >containerd.log 2>&1 &
snapshots() {
    timeout 60 ctr --address /run/containerd.sock snapshots --snapshotter headstart "$@"
}
until snapshots list >list.log 2>&1; do sleep 1; done

# prepare KEY PARENT: an active snapshot, mounted at /tmp/KEY.
prepare() {
    mkdir "$1"
    snapshots prepare --target "/tmp/$1" "$1" "$2" >"mount-$1.sh" 2>prepare.log || failed "prepare $1"
    sh "mount-$1.sh" || failed "mount $1"
}
# fill KEY NAME MEBIBYTES: says how many KiB were written until it failed or was done.
fill() {
    local what='done'
    dd if=/dev/zero of="$1/$2" bs=64k count=$(($3 * 16)) conv=fsync 2>dd.log ||
        what=$(sed -n 's/^dd: .*: //p' dd.log | head -n 1)
    echo "$(($(stat -c %b "$1/$2") / 2)) $what"
}

# A layer that is unpacked has no limit.
prepare extract-base ""
echo below >extract-base/below
unpacked=$(fill extract-base layer 6)
umount extract-base
snapshots commit base extract-base || failed "commit"

prepare one base
prepare two base
echo changed >one/below
sizes=$(df --output=size -k one two | tail -n +2 | tr -s ' \n' ' ')
one=$(fill one big 8)
two=$(fill two big 3)
# The limit is the kernel's: it holds without the snapshotter, and is not lost with it.
kill -9 $snapshotter
wait $snapshotter 2>/dev/null
rm snapshotter.sock
: >snapshotter.log
again=$(fill one more 8)
rm one/big one/more
start_snapshotter
freed=$(fill one new 3)
label=$(snapshots info two | grep -c 'headstart.quota')
# A container may have a file for each 4 KiB of its limit, 4096 at least.
mkdir two/files
many=$( (cd two/files && seq 5000 | xargs touch) 2>&1 | sed -n 's/.*: //p' | sort -u | head -n 1)
files="$(find two/files -type f | wc -l) $many"
rm -r two/files

# A removed snapshot gives its project back.
project() {
    perl "$here/project.pl" "$@" 2>&1
}
device=$(findmnt -n -o SOURCE root)
own=$(project of one)
directory=$(findmnt -n -o FS-OPTIONS one | tr , '\n' | sed -n 's:^upperdir=\(.*\)/fs$:\1:p')
held=$(project limits "$device" "$own")
umount one
snapshots remove one || failed "remove"
# containerd has its plugins remove what it has removed itself when it collects garbage.
lease=$(ctr --address /run/containerd.sock leases create)
ctr --address /run/containerd.sock leases delete --sync "$lease" >lease.log 2>&1
for _ in $(seq 300); do
    [ -d "$directory" ] || break
    sleep 0.2
done
[ -d "$directory" ] && failed "$directory is still there"
released=$(project limits "$device" "$own")

mkdir two/free two/loose
chown 1000:1000 two/free two/loose

# Its number is no successor of another's, so no container knows the next ones.
prepare three base
three=$(fill three big 8)
left=$(fill two most 3)
apart=$(($(project of three) - $(project of two)))

# The owner of a directory takes the project from it, or the mark "inherit", without a capability, and passes the limit:
# the docs say so. In a user namespace of its own it cannot.
plain() {
    setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all --bounding-set=-all "$@"
}
namespaced() {
    plain unshare --user --map-root-user "$@" 2>&1
}
mapped=$(namespaced perl "$here/project.pl" set two/free 0; namespaced chattr -P two/loose | sed 's/ while.*//')
taken=$(plain perl "$here/project.pl" set two/free 0 2>&1)
plain chattr -P two/loose
escaped=$(for place in free loose; do
    plain dd if=/dev/zero of=two/$place/big bs=64k count=128 conv=fsync 2>&1 | tail -n 1 | cut -d ' ' -f 1
done)
mapped=$(echo $mapped)
escaped=$(echo $escaped)
umount two three
end "done: unpacked $unpacked; sizes $sizes; one $one; two $two; again $again; freed $freed; label $label;" \
    "files $files; held $held; released $released; three $three; left $left; apart $apart; mapped $mapped;" \
    "taken $taken; escaped $escaped;"
