#!/bin/bash
# Runs in an emulated guest as its first process, from the disk that kernel_devices.rs makes: an image becomes a
# /dev/nbdN, a file system on it is read without an end, and the process of the disk is killed again and again. Says what
# came of it on the serial port.
here=$(cd "$(dirname "$0")" && pwd)
headstart=$here/headstart

end() {
    echo "GUEST $*"
    sleep 1
    echo b >/proc/sysrq-trigger
    sleep 60
}

mountpoint -q /proc || mount -t proc proc /proc
mountpoint -q /sys || mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
export HOME=/tmp XDG_CACHE_HOME=/tmp
cd /tmp || end "failed: no directory"
modprobe nbd nbds_max=2 || end "failed: no nbd"
"$headstart" doctor | grep '^containers' | sed 's/^/GUEST-DOCTOR /'

"$headstart" agent --dir /tmp/agent --cache /tmp/cache >agent.log 2>&1 &
until [ -S agent/agent.sock ]; do sleep 0.2; done
attach() {
    "$headstart" attach "file://$here/store:v1" --agent agent/agent.sock --as vm --device auto --deadline 5s
}
attach >attach.log 2>&1 || { cat attach.log agent.log; end "failed: not attached"; }
device=$(grep -o '/dev/nbd[0-9]*' attach.log | head -n 1)
[ -b "$device" ] || { cat attach.log; end "failed: no device"; }
mkdir files
mount -t ext4 -o ro,noload "$device" files || end "failed: not mounted"

# Each round reads all files from the device, and compares them.
read_all() {
    local rounds=0 slowest=0 before took
    while [ ! -e stop ]; do
        echo 3 >/proc/sys/vm/drop_caches
        before=$(date +%s%3N)
        (cd files && md5sum --quiet -c "$here/sums") >>failures 2>&1 || echo "round $rounds" >>failures
        took=$(($(date +%s%3N) - before))
        [ $took -le $slowest ] || slowest=$took
        rounds=$((rounds + 1))
    done
    echo "$rounds $slowest" >"read"
}
: >failures
read_all &
reader=$!
for _ in 1 2 3; do
    sleep 4
    process=$(tr -dc 0-9 <agent/disks/vm.pid)
    kill -9 "$process" || echo "no process $process" >>failures
done
sleep 20
touch stop
wait $reader
[ ! -s failures ] || { cat failures agent.log; dmesg | tail -n 20; end "failed: reads"; }
restarts=$("$headstart" disk list --agent agent/agent.sock --json | grep -o '"restarts": *[0-9]*' | tr -dc 0-9)
backend=$(cat "/sys/block/${device#/dev/}/backend")
umount files || end "failed: not unmounted"
"$headstart" disk detach vm --agent agent/agent.sock >detach.log 2>&1 || { cat detach.log; end "failed: not detached"; }
sleep 1
left=$(cat "/sys/block/${device#/dev/}/size")
end "done: $(cat read) restarts $restarts left $left backend $backend"
