#!/bin/bash
# Runs in an emulated guest as its first process, from the disk that kernel_devices.rs makes: an image becomes a block
# device by the driver that the file `driver` names, a file system on it is read without an end, and the process of the
# disk is killed again and again. By ublk, files are then written in the same way. Says what came of it on the serial
# port.
here=$(cd "$(dirname "$0")" && pwd)
headstart=$here/headstart
driver=$(cat "$here/driver")

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
case $driver in
    nbd) modprobe nbd nbds_max=2 || end "failed: no nbd" ;;
    ublk) insmod "$here/ublk_drv.ko.xz" || end "failed: no ublk" ;;
esac
"$headstart" doctor | grep -E '^(containers|ublk)' | sed 's/^/GUEST-DOCTOR /'

"$headstart" agent --dir /tmp/agent --cache /tmp/cache >agent.log 2>&1 &
until [ -S agent/agent.sock ]; do sleep 0.2; done
# attach NAME [OPTION...]: sets `device`.
attach() {
    local way=(--device auto --deadline 5s) name=$1
    shift
    [ "$driver" = nbd ] || way=(--ublk)
    "$headstart" attach "file://$here/store:v1" --agent agent/agent.sock --as "$name" "${way[@]}" "$@" \
        >attach.log 2>&1 || { cat attach.log agent.log; end "failed: not attached"; }
    device=$(grep -o '/dev/\(nbd\|ublkb\)[0-9]*' attach.log | head -n 1)
    [ -b "$device" ] || { cat attach.log; end "failed: no device"; }
}
detach() {
    "$headstart" disk detach "$1" --agent agent/agent.sock >detach.log 2>&1 ||
        { cat detach.log; end "failed: not detached"; }
}
kill_process() {
    local process
    process=$(tr -dc 0-9 <"agent/disks/$1.pid")
    kill -9 "$process" || echo "no process $process" >>failures
}
end_with_failures() {
    [ -s failures ] || return 0
    cat failures agent.log
    [ ! -e failures.dd ] || tail -n 5 failures.dd
    dmesg | tail -n 20
    end "failed: $1"
}

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
        echo $rounds >rounds
    done
    echo "rounds $rounds slowest $slowest" >"read"
}

attach vm
mkdir files
mount -t ext4 -o ro,noload "$device" files || end "failed: not mounted"
: >failures
read_all &
reader=$!
for _ in 1 2 3; do
    sleep 4
    kill_process vm
done
if [ "$driver" = nbd ]; then sleep 20; else sleep 5; fi
# On a machine with much to do, a round takes long: the last is to begin after the last death.
rounds=$(cat rounds 2>/dev/null)
for _ in $(seq 60); do
    [ "$(cat rounds 2>/dev/null || echo 0)" -lt $((${rounds:-0} + 3)) ] || break
    sleep 1
done
touch stop
wait $reader
end_with_failures reads
restarts=$("$headstart" disk list --agent agent/agent.sock --json | grep -o '"restarts": *[0-9]*' | tr -dc 0-9)
backend=$(cat "/sys/block/${device#/dev/}/backend" 2>/dev/null)
umount files || end "failed: not unmounted"
detach vm
sleep 1
left=$(cat "/sys/block/${device#/dev/}/size" 2>/dev/null || echo 0)

# Each file is durable before the next is begun.
write_all() {
    local number=0
    while [ ! -e stop ]; do
        number=$((number + 1))
        dd if="$here/sums" of="written/$number" bs=1k conv=fsync 2>>failures.dd || echo "file $number" >>failures
        # The reader of the number sees what has been made durable.
        echo $number >durable
    done
}
compare_all() {
    local number=1
    while [ $number -le "$(cat durable)" ]; do
        cmp "$here/sums" "written/$number" >>failures 2>&1
        number=$((number + 1))
    done
}
if [ "$driver" = ublk ]; then
    rm stop
    attach writer --writable /tmp/writable
    mkdir written
    mount -t ext4 "$device" written || end "failed: not mounted for writes"
    write_all &
    writer=$!
    for _ in 1 2; do
        sleep 3
        kill_process writer
    done
    sleep 3
    touch stop
    wait $writer
    end_with_failures writes
    echo 3 >/proc/sys/vm/drop_caches
    compare_all
    umount written || end "failed: not unmounted after writes"
    detach writer
    # What the disk itself has, without the host's memory of it.
    attach again --writable /tmp/writable
    mount -t ext4 "$device" written || end "failed: not mounted after writes"
    compare_all
    dmesg | grep -i 'I/O error' >>failures
    end_with_failures comparison
    umount written || end "failed: not unmounted at last"
    # The agent releases the device of a disk whose process is dead.
    kill_process again
    detach again
    sleep 1
    left=$((left + $(find /sys/class/ublk-char/ -name 'ublkc*' | wc -l)))
    backend="none written $(cat durable)"
fi
end "done: $(cat read) restarts $restarts left $left backend $backend"
