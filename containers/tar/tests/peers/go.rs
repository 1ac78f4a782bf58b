//! Go's archive/tar, by which containerd reads layers, beside this reader.

use crate::support::{ListedFile, installed, list, output};
use headstart_block::{Error, ErrorKind};
use headstart_tar::TarKind;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Prints the entries of the archives on standard input, each of which stands behind its length in eight bytes; the
/// form is that of [`line`].
const PROGRAM: &str = r#"
package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sort"
	"strings"
)

func list(out io.Writer, archive []byte) {
	reader := tar.NewReader(struct{ io.Reader }{bytes.NewReader(archive)}) // Hidden, so that Go does not seek.
	for {
		header, err := reader.Next()
		if err == io.EOF {
			fmt.Fprintln(out, "end")
			return
		}
		if err != nil {
			fmt.Fprintln(out, "error")
			return
		}
		flag, link, device := header.Typeflag, "", "0:0"
		switch flag {
		case 'g':
			continue
		case '1', '2':
			link = header.Linkname
		case '3', '4':
			device = fmt.Sprintf("%d:%d", header.Devmajor, header.Devminor)
		case '7', 'S':
			flag = '0'
		}
		size := header.Size
		if flag != '0' {
			size = 0
		}
		var xattrs []string
		for key, value := range header.PAXRecords {
			if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
				xattrs = append(xattrs, fmt.Sprintf("%x=%x", name, value))
			}
		}
		sort.Strings(xattrs)
		// A size that is a lie ends in an error.
		content, err := io.ReadAll(io.LimitReader(reader, 4<<20))
		if err != nil {
			fmt.Fprintln(out, "error")
			return
		}
		fmt.Fprintf(out, "%x %d %o %d %d %d.%d %d %x %s %s %d\n", header.Name, flag, header.Mode&07777,
			header.Uid, header.Gid, header.ModTime.Unix(), header.ModTime.Nanosecond(), size, link, device,
			strings.Join(xattrs, ","), crc32.ChecksumIEEE(content))
	}
}

func main() {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	in := bufio.NewReader(os.Stdin)
	for number := 0; ; number++ {
		var length uint64
		if binary.Read(in, binary.BigEndian, &length) != nil {
			return
		}
		archive := make([]byte, length)
		if _, err := io.ReadFull(in, archive); err != nil {
			panic(err)
		}
		fmt.Fprintf(out, "archive %d\n", number)
		list(out, archive)
	}
}
"#;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The CRC-32 of Ethernet, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// An entry in the form of the program in Go.
fn line(file: &ListedFile) -> String {
    let entry = &file.entry;
    let flag = match entry.kind {
        TarKind::Regular => b'0',
        TarKind::HardLink => b'1',
        TarKind::Symlink => b'2',
        TarKind::CharDevice => b'3',
        TarKind::BlockDevice => b'4',
        TarKind::Directory => b'5',
        TarKind::Fifo => b'6',
    };
    let mut xattrs: Vec<_> =
        entry.xattrs.iter().map(|(name, value)| format!("{}={}", hex(name), hex(value))).collect();
    xattrs.sort();
    format!(
        "{} {flag} {:o} {} {} {}.{} {} {} {}:{} {} {}",
        hex(&entry.path),
        entry.mode,
        entry.uid,
        entry.gid,
        entry.mtime.seconds,
        entry.mtime.nanoseconds,
        entry.size,
        hex(&entry.link_target),
        entry.device.0,
        entry.device.1,
        xattrs.join(","),
        crc32(&file.content)
    )
}

/// `true` if this reader may refuse what Go takes: limits, ids, typeflags and versions; maps that do not fit the
/// content; attributes that Go does not look at.
fn may_differ(error: &Error) -> bool {
    let text = error.to_string();
    let known = ["bytes of content for", "base 64", "attribute without a name"];
    error.kind() == ErrorKind::Unsupported || known.iter().any(|known| text.contains(known))
}

/// Compares what Go printed for an archive with what this reader finds.
fn compare(archive: &[u8], of_go: &str, name: &str) {
    let (files, error) = list(archive);
    let lines: Vec<_> = files.iter().map(line).collect();
    let mut of_go: Vec<_> = of_go.lines().collect();
    let end = of_go.pop().unwrap_or_default();
    let common = lines.iter().zip(&of_go).take_while(|(ours, go)| ours == go).count();
    // Behind a hard link Go may find no header where this reader skips content.
    let link_before = files[..common].last().is_some_and(|file| file.entry.kind == TarKind::HardLink);
    if common == of_go.len() && end == "error" && link_before {
        return;
    }
    let agree_on_entries =
        common == lines.len() && (common == of_go.len() || error.as_ref().is_some_and(may_differ));
    assert!(
        agree_on_entries,
        "{name}: entry {common}:\n{:?}\nGo: {:?}\n{error:?}",
        lines.get(common),
        of_go.get(common)
    );
    match (&error, end) {
        (None, "end") | (Some(_), "error") => {}
        (Some(error), _) if may_differ(error) => {}
        _ => panic!("{name}: {error:?}, Go: {end}"),
    }
}

/// The archive with a byte changed and, wherever a header may be, the checksum made right.
fn changed(archive: &[u8], at: usize, mask: u8) -> Vec<u8> {
    let mut archive = archive.to_vec();
    archive[at] ^= mask;
    let start = at / 512 * 512;
    if let Some(block) = archive.get_mut(start..start + 512).filter(|_| !(148..156).contains(&(at % 512))) {
        let has_sum = block[148..154].iter().all(|byte| matches!(byte, b'0'..=b'7' | b' '));
        if has_sum {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    archive
}

/// The archives among Go's own test data, without packed ones.
fn archives_of_go(root: &Path) -> Vec<(String, Vec<u8>)> {
    let directory = root.join("src/archive/tar/testdata");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "tar"));
    paths.sort();
    paths.iter().map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect()
}

#[test]
fn go_finds_the_same_entries_and_the_same_faults() {
    if !installed("go", "version") {
        return;
    }
    let root = String::from_utf8(output(Command::new("go").args(["env", "GOROOT"]))).unwrap();
    let whole = archives_of_go(Path::new(root.trim()));
    assert!(!whole.is_empty(), "Go has no test data");
    let places = if std::env::var_os("HEADSTART_SOAK").is_some() { 4000 } else { 80 };
    let mut archives = whole.clone();
    for (name, archive) in whole.iter().filter(|(_, archive)| archive.len() < 32 << 10) {
        // Fewer places of long archives, at odd distances, so that all fields come up.
        let step = archive.len().div_ceil(places) | 1;
        for at in (0..archive.len()).step_by(step) {
            for mask in [0xff, 1, 0x80] {
                archives.push((format!("{name}, byte {at} ^ {mask:#x}"), changed(archive, at, mask)));
            }
            archives.push((format!("{name}, cut to {at} bytes"), archive[..at].to_vec()));
        }
    }
    let directory = TempDir::new().unwrap();
    let program = directory.path().join("main.go");
    fs::write(&program, PROGRAM).unwrap();
    let input = directory.path().join("archives");
    let joined: Vec<u8> = archives
        .iter()
        .flat_map(|(_, archive)| [&(archive.len() as u64).to_be_bytes()[..], archive].concat())
        .collect();
    fs::write(&input, joined).unwrap();
    let mut go = Command::new("go");
    go.arg("run").arg(&program).stdin(File::open(&input).unwrap()).env("GO111MODULE", "off");
    let text = String::from_utf8(output(&mut go)).unwrap();
    let mut parts = text.split("archive ").skip(1);
    for (number, (name, archive)) in archives.iter().enumerate() {
        let (head, lines) = parts.next().and_then(|part| part.split_once('\n')).unwrap();
        assert_eq!(head, number.to_string());
        compare(archive, lines, name);
    }
}
