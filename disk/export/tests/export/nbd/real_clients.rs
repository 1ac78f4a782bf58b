//! The clients that people use.

use super::test_disk::TestDisk;
use super::{output, run, serve};
use headstart_block::{ByteRange, ErrorKind};
use headstart_export::nbd::{NbdServer, NbdSettings};
use headstart_export::{Export, Server as _};
use headstart_testkit::process::installed;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const LEN: usize = 12 << 20;

#[test]
fn nbdinfo_describes_lists_and_maps() {
    if !installed(&["nbdinfo"]) {
        return;
    }
    let served = serve(TestDisk::new(TestDisk::patterned(LEN), false));
    let uri = served.uri();
    let json = run("nbdinfo", &["--json", &uri]);
    for expected in [
        "\"export-name\": \"disk\"",
        "\"description\": \"a disk for tests\"",
        "\"export-size\": 12582912",
        "\"can_multi_conn\": true",
        "\"can_fast_zero\": true",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"block_size_preferred\": 4096",
        "\"structured\": true",
        "base:allocation",
    ] {
        assert!(json.contains(expected), "{expected} is not in {json}");
    }
    assert!(run("nbdinfo", &["--list", &uri]).contains("export=\"disk\""));
    let map = run("nbdinfo", &["--map", &uri]);
    let kinds: Vec<&str> = map.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(kinds, ["0", "3", "0"], "{map}");
}

#[test]
fn several_exports_are_served_over_tcp() {
    if !installed(&["nbdinfo"]) {
        return;
    }
    let export = |name: &str, len| Export::new(name, Arc::new(TestDisk::new(vec![1; len], true)));
    let settings = NbdSettings::new("127.0.0.1:0".parse().unwrap());
    let server = NbdServer::start(&settings, vec![export("boot", 8192), export("data/é", 512)]).unwrap();
    let uri = server.uri();
    let list = run("nbdinfo", &["--list", "--json", &uri]);
    assert!(list.contains("\"boot\"") && list.contains("\"data/é\""), "{list}");
    assert_eq!(run("nbdinfo", &["--size", &format!("{uri}/boot")]).trim(), "8192");
    assert_eq!(run("nbdinfo", &["--size", &format!("{uri}/data/%C3%A9")]).trim(), "512");
    assert!(!output("nbdinfo", &["--size", &format!("{uri}/other")]).status.success());
    let twice = NbdServer::start(&settings, vec![export("a", 512), export("a", 512)]);
    assert_eq!(twice.err().unwrap().kind(), ErrorKind::Invalid);
}

#[test]
fn nbdcopy_copies_both_ways() {
    if !installed(&["nbdcopy"]) {
        return;
    }
    let bytes = TestDisk::patterned(LEN);
    let from = serve(TestDisk::new(bytes.clone(), true));
    let file = from.dir.path().join("copy");
    run("nbdcopy", &[&from.uri(), file.to_str().unwrap()]);
    assert!(fs::read(&file).unwrap() == bytes, "the copy differs");
    let to = serve(TestDisk::new(vec![0xff; LEN], false));
    run("nbdcopy", &["--flush", file.to_str().unwrap(), &to.uri()]);
    assert!(to.disk.bytes() == bytes, "what was copied here differs");
    assert!(to.disk.flushes.load(Ordering::SeqCst) > 0);
    let directly = serve(TestDisk::new(vec![0xff; LEN], false));
    run("nbdcopy", &[&from.uri(), &directly.uri()]);
    assert!(directly.disk.bytes() == bytes, "what was copied from server to server differs");
}

#[test]
fn qemu_img_converts_compares_and_measures() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let bytes = TestDisk::patterned(LEN);
    let from = serve(TestDisk::new(bytes.clone(), true));
    let file = from.dir.path().join("copy.qcow2");
    let file = file.to_str().unwrap();
    run("qemu-img", &["convert", "-O", "qcow2", &from.uri(), file]);
    run("qemu-img", &["compare", file, &from.uri()]);
    let to = serve(TestDisk::new(vec![0xff; LEN], false));
    run("qemu-img", &["convert", "-n", "-O", "raw", file, &to.uri()]);
    assert!(to.disk.bytes() == bytes, "what was converted here differs");
    run("qemu-img", &["bench", "-f", "raw", "-c", "2000", "-d", "32", "-s", "4k", &from.uri()]);
    run(
        "qemu-img",
        &["bench", "-f", "raw", "-w", "-c", "500", "-d", "16", "--flush-interval", "100", &to.uri()],
    );
    let refused = output("qemu-img", &["bench", "-f", "raw", "-w", "-c", "10", &from.uri()]);
    assert!(!refused.status.success(), "a read-only disk was written");
}

#[test]
fn qemu_io_reads_writes_and_discards() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let served = serve(TestDisk::new(vec![9; LEN], false));
    let commands = [
        "write -P 0x11 0 1M",
        "write -P 0x22 1000 333",
        "read -P 0x22 1000 333",
        "read -P 0x11 1333 1000",
        "write -z 2M 1M",
        "read -P 0 2M 1M",
        "write -f -P 0x33 3M 64k",
        "discard 4M 1M",
        "flush",
        "write -z -u 5000 9000",
        "read -P 0 5000 9000",
        "read -P 0x11 4096 904",
    ];
    let uri = served.uri();
    let mut args = vec!["-f", "raw", &uri];
    for command in &commands {
        args.extend(["-c", command]);
    }
    let said = run("qemu-io", &args);
    assert!(!said.contains("fail"), "{said}");
    assert!(served.disk.bytes()[4 << 20..5 << 20].iter().all(|byte| *byte == 0));
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !installed(&["fio"]) {
        return;
    }
    let served = serve(TestDisk::new(vec![0; 16 << 20], false));
    let uri = format!("--uri={}", served.uri());
    // In its directory, because fio leaves the state of its verification there.
    let mut fio = super::tool("timeout");
    fio.current_dir(served.dir.path()).args(["60", "fio", "--name=verify", "--ioengine=nbd", &uri]).args([
        "--rw=randwrite",
        "--bsrange=512-64k",
        "--blockalign=512",
        "--iodepth=32",
        "--size=16m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--output-format=terse",
    ]);
    let output = fio.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn nbdsh(uri: &str, script: &str) -> String {
    run("nbdsh", &["--base-allocation", "-u", uri, "-c", script])
}

#[test]
fn nbdsh_reads_in_every_way() {
    if !installed(&["nbdsh"]) {
        return;
    }
    let bytes = TestDisk::patterned(LEN);
    let served = serve(TestDisk::new(bytes.clone(), true));
    let script = "
assert h.get_structured_replies_negotiated()
assert h.is_read_only() and h.can_df() and h.can_multi_conn() and h.can_cache()
chunks = []
def chunk(buf, offset, status, err):
    chunks.append((status, offset, len(buf)))
data = h.pread_structured(8 << 20, 1 << 20, chunk)
holes = [c for c in chunks if c[0] == nbd.READ_HOLE]
assert len(holes) == 1 and holes[0][1] == 4 << 20, chunks
chunks.clear()
whole = h.pread_structured(8 << 20, 1 << 20, chunk, nbd.CMD_FLAG_DF)
assert len(chunks) == 1 and chunks[0] == (nbd.READ_DATA, 1 << 20, 8 << 20), chunks
assert data == whole
for offset, length in [(0, 1), (511, 2), (4095, 4097), (12582911, 1)]:
    open(f'{offset}', 'wb').write(h.pread(length, offset))
open('data', 'wb').write(data)
h.cache(65536, 4096)
for bad in [lambda: h.pwrite(b'x' * 512, 0), lambda: h.trim(512, 0), lambda: h.zero(512, 0)]:
    try:
        bad()
        assert False, 'not refused'
    except nbd.Error as e:
        assert e.errno in ('EPERM', 'EINVAL'), e
h.set_strict_mode(0)
try:
    h.pwrite(b'x' * 512, 0)
    assert False, 'not refused'
except nbd.Error as e:
    assert e.errno == 'EPERM', e
try:
    h.pread(512, 12582912)
    assert False, 'not refused'
except nbd.Error as e:
    assert e.errno == 'EINVAL', e
";
    let script = format!("import os\nos.chdir('{}')\n{script}", served.dir.path().display());
    nbdsh(&served.uri(), &script);
    let got = |name: &str| fs::read(served.dir.path().join(name)).unwrap();
    assert!(got("data") == bytes[1 << 20..9 << 20]);
    for (offset, len) in [(0, 1), (511, 2), (4095, 4097), (LEN - 1, 1)] {
        assert_eq!(got(&offset.to_string()), bytes[offset..offset + len]);
    }
    assert_eq!(*served.disk.prefetched.lock().unwrap(), [ByteRange::between(4096, 69632)]);
}

#[test]
fn nbdsh_writes_in_every_way() {
    if !installed(&["nbdsh"]) {
        return;
    }
    let served = serve(TestDisk::new(vec![7; LEN], false));
    nbdsh(
        &served.uri(),
        "
h.pwrite(b'a' * 4096, 8192)
h.pwrite(b'b' * 3, 8191, nbd.CMD_FLAG_FUA)
h.pwrite(b'c' * 5000000, 1000001)
h.zero(1 << 20, 7 << 20)
h.zero(1000, 8 << 20, nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 9 << 20, nbd.CMD_FLAG_FAST_ZERO)
h.trim(10000, (10 << 20) + 100)
h.flush()
try:
    h.zero(100, 512, nbd.CMD_FLAG_FAST_ZERO)
    assert False, 'not refused'
except nbd.Error as e:
    assert e.errno == 'ENOTSUP', e
h.set_strict_mode(0)
try:
    h.pwrite(b'x' * 512, 12582912)
    assert False, 'not refused'
except nbd.Error as e:
    assert e.errno == 'ENOSPC', e
extents = []
def extent(context, offset, entries, err):
    extents.append((context, offset, entries))
h.block_status(12 << 20, 0, extent)
context, offset, entries = extents[0]
assert context == 'base:allocation' and offset == 0
assert sum(entries[0::2]) == 12 << 20 and entries[1] == 0 and 3 in entries[1::2], entries
extents.clear()
h.block_status(5 << 20, 7 << 20, extent, nbd.CMD_FLAG_REQ_ONE)
assert extents[0][2] == [(1 << 20) + 512, 3], extents
",
    );
    let mut expected = vec![7; LEN];
    expected[8192..12288].fill(b'a');
    expected[8191..8194].fill(b'b');
    expected[1_000_001..6_000_001].fill(b'c');
    expected[7 << 20..8 << 20].fill(0);
    expected[8 << 20..(8 << 20) + 1000].fill(0);
    expected[9 << 20..(9 << 20) + 4096].fill(0);
    // A trim leaves bytes that are not a whole sector.
    expected[(10 << 20) + 512..(10 << 20) + 9728].fill(0);
    assert!(served.disk.bytes() == expected);
    assert_eq!(served.disk.flushes.load(Ordering::SeqCst), 2);
}

#[test]
fn nbdsh_hears_why_a_request_failed() {
    if !installed(&["nbdsh"]) {
        return;
    }
    let served = serve(TestDisk::new(vec![7; LEN], false));
    for (kind, errno) in
        [(ErrorKind::NoSpace, "ENOSPC"), (ErrorKind::Unavailable, "EIO"), (ErrorKind::Invalid, "EINVAL")]
    {
        *served.disk.fail.lock().unwrap() = Some(kind);
        let script = format!(
            "
for request in [lambda: h.pread(512, 0), lambda: h.pwrite(b'x' * 512, 0), lambda: h.flush()]:
    try:
        request()
        assert False, 'it worked'
    except nbd.Error as e:
        assert e.errno == '{errno}', e
"
        );
        nbdsh(&served.uri(), &script);
    }
}

#[test]
fn nbdsh_sees_one_disk_through_several_connections() {
    if !installed(&["nbdsh"]) {
        return;
    }
    let served = serve(TestDisk::new(vec![0; LEN], false));
    let uri = served.uri();
    nbdsh(
        &uri,
        &format!(
            "
others = [nbd.NBD() for _ in range(4)]
for other in others:
    other.connect_uri('{uri}')
# Each writes its own bytes of the same sectors, all at once.
for at in range(0, 4096):
    others[at % 4].aio_pwrite(nbd.Buffer.from_bytearray(bytearray([at % 251 + 1])), at)
for other in others:
    while other.aio_in_flight() > 0:
        other.poll(-1)
h.flush()
assert h.pread(4096, 0) == bytearray(at % 251 + 1 for at in range(4096))
"
        ),
    );
}
