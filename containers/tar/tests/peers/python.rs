//! Entries written by Python's tarfile, in its three formats.

use crate::support::{installed, output, whole};
use headstart_tar::TarKind;
use std::process::Command;

/// Writes the entries of the lines given to standard output; the first argument is the format.
const SCRIPT: &str = r#"
import io, sys, tarfile
form = getattr(tarfile, sys.argv[1] + "_FORMAT")
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=form, pax_headers={"comment": "all"}) as out:
    for line in sys.argv[2:]:
        name, flag, mode, uid, gid, mtime, size, link, major, minor = line.split("|")
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.uid, info.gid = flag.encode(), int(mode, 8), int(uid), int(gid)
        info.mtime, info.size, info.linkname = float(mtime), int(size), link
        if form != tarfile.PAX_FORMAT or mtime.endswith(".0"):
            info.mtime = int(info.mtime)
        info.devmajor, info.devminor = int(major), int(minor)
        out.addfile(info, io.BytesIO(b"x" * info.size))
"#;

/// Entries that every format has room for.
const PLAIN: &[&str] = &[
    "dir|5|755|0|0|1700000000.0|0||0|0",
    "dir/file|0|4755|1000|1001|1700000000.0|1000||0|0",
    "hard|1|644|0|0|0.0|0|dir/file|0|0",
    "soft|2|777|0|0|1.0|0|../dir//file|0|0",
    "null|3|666|0|5|1.0|0||1|3",
    "disk|4|660|0|6|1.0|0||259|70000",
    "fifo|6|600|0|0|1.0|0||0|0",
    "contiguous|7|600|0|0|1.0|513||0|0",
];

/// Entries that ustar has no room for.
const LARGE: &[&str] = &[
    "owned|0|644|4000000000|3000000|8589934597.0|5||0|0",
    "old|0|644|0|0|-5.0|5||0|0",
    "a/LONG|0|644|0|0|1.0|5||0|0",
    "link|2|777|0|0|1.0|0|t/LONG|0|0",
];

/// Entries that only PAX has room for.
const FINE: &[&str] = &["fine|0|644|0|0|1700000000.5|5||0|0", "early|0|644|0|0|-1.25|5||0|0"];

fn check(format: &str, lines: &[String]) {
    let archive = output(Command::new("python3").args(["-c", SCRIPT, format]).args(lines));
    let files = whole(&archive);
    assert_eq!(files.len(), lines.len(), "{format}");
    for (file, line) in files.iter().zip(lines) {
        let fields: Vec<_> = line.split('|').collect();
        let number = |at: usize| fields[at].parse::<u32>().unwrap();
        let entry = &file.entry;
        let kind = match fields[1] {
            "0" | "7" => TarKind::Regular,
            "1" => TarKind::HardLink,
            "2" => TarKind::Symlink,
            "3" => TarKind::CharDevice,
            "4" => TarKind::BlockDevice,
            "5" => TarKind::Directory,
            _ => TarKind::Fifo,
        };
        let name = if kind == TarKind::Directory { format!("{}/", fields[0]) } else { fields[0].to_owned() };
        assert_eq!((entry.path.as_slice(), entry.kind), (name.as_bytes(), kind), "{format} {line}");
        assert_eq!(entry.mode, u32::from_str_radix(fields[2], 8).unwrap(), "{format} {line}");
        assert_eq!((entry.uid, entry.gid), (number(3), number(4)), "{format} {line}");
        let quarters = fields[5].parse::<f64>().unwrap() * 4.0;
        let found = (entry.mtime.seconds as f64).mul_add(4.0, f64::from(entry.mtime.nanoseconds) / 250e6);
        assert!(quarters.to_bits() == found.to_bits(), "{format} {line}: {:?}", entry.mtime);
        assert_eq!(file.content, vec![b'x'; fields[6].parse().unwrap()], "{format} {line}");
        assert_eq!(
            (entry.link_target.as_slice(), entry.device),
            (fields[7].as_bytes(), (number(8), number(9)))
        );
    }
}

#[test]
fn entries_of_python_are_read_as_they_were_written() {
    if !installed("python3", "--version") {
        return;
    }
    let long = vec!["long"; 70].join("_");
    let lines = |parts: &[&[&str]]| -> Vec<String> {
        parts.concat().iter().map(|line| line.replace("LONG", &long)).collect()
    };
    check("USTAR", &lines(&[PLAIN]));
    check("GNU", &lines(&[PLAIN, LARGE]));
    check("PAX", &lines(&[PLAIN, LARGE, FINE]));
}
