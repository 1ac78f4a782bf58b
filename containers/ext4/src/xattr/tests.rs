use super::*;
use crate::support::{Image, OpenImage, skip_without};
use headstart_block::ErrorKind;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Bytes behind the fields of a usual inode.
const SPACE: usize = 96;

fn attribute(name: &str, value: impl Into<Vec<u8>>) -> ExtendedAttribute {
    ExtendedAttribute { name: name.into(), value: value.into() }
}

/// All attributes of an inode with such parts.
fn decoded(encoded: &EncodedXattrs) -> Vec<ExtendedAttribute> {
    let mut all = decode_in_inode(&encoded.in_inode).unwrap();
    all.extend(encoded.block.as_ref().map(|block| decode_block(block).unwrap()).unwrap_or_default());
    all.sort();
    all
}

/// A list with a named user, in the form of programs.
fn list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [(1, 6, !0), (2, 7, 1000), (4, 4, !0), (0x10, 7, !0), (0x20, 4, !0)];
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn attributes_are_in_the_inode_or_in_the_block_or_in_both() {
    let few = [attribute("user.a", "1"), attribute("security.capability", [1; 20])];
    let encoded = encode(&few, SPACE).unwrap();
    assert!(encoded.block.is_none() && encoded.in_inode.len() == SPACE);
    assert_eq!(decoded(&encoded), [few[1].clone(), few[0].clone()]);

    // The largest value that fits, and one byte more.
    for (len, is_inside) in [(68, true), (69, false)] {
        let encoded = encode(&[attribute("user.abcd", vec![7; len])], SPACE).unwrap();
        assert_eq!(encoded.block.is_none(), is_inside);
        assert_eq!(encoded.in_inode == [0; SPACE], !is_inside);
    }
    let both = [attribute("user.a", vec![1; 4000]), attribute("user.bb", vec![2; 50])];
    let encoded = encode(&both, SPACE).unwrap();
    assert_eq!(decode_in_inode(&encoded.in_inode).unwrap(), [both[1].clone()]);
    assert_eq!(decode_block(encoded.block.as_ref().unwrap()).unwrap(), [both[0].clone()]);

    let error = encode(&[both[0].clone(), attribute("user.b", vec![2; 90])], SPACE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("user.b has no room in the inode and its block"), "{error}");
    let encoded = encode(&[], SPACE).unwrap();
    assert!(encoded.block.is_none() && encoded.in_inode == [0; SPACE]);
    assert!(encode(&few[..1], 0).unwrap().block.is_some());
}

#[test]
fn names_that_cannot_be_stored_are_refused() {
    for name in ["foo.bar", "user.", "user", "", "system.posix_acl_access2\0", "btrfs.compression"] {
        let found = encode(&[attribute(name, "x")], SPACE);
        // The last part of the fifth is the name of an attribute of the system.
        assert_eq!(found.is_ok(), name.starts_with("system."), "{name}");
    }
    let long = attribute(&format!("user.{}", "x".repeat(256)), "");
    assert!(encode(&[long], SPACE).unwrap_err().to_string().contains("more than 255 bytes"));
    let twice = [attribute("user.a", "1"), attribute("user.b", "1"), attribute("user.a", "2")];
    let error = encode(&twice, SPACE).unwrap_err();
    assert!(error.to_string().contains("user.a is given twice"), "{error}");
    let error = encode(&[attribute("system.posix_acl_access", "text")], SPACE).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the extended attribute system.posix_acl_access: is no access control list: it has another version or length"
    );
    let none = attribute("system.posix_acl_default", [2, 0, 0, 0]);
    assert_eq!(decoded(&encode(&[none], SPACE).unwrap()), []);
}

#[test]
fn lists_are_stored_in_their_own_form() {
    let lists = [attribute("system.posix_acl_access", list()), attribute("system.posix_acl_default", list())];
    let encoded = encode(&lists, 160).unwrap();
    assert!(encoded.block.is_none());
    assert_eq!(decoded(&encoded), lists);
    // Version 1, five entries, of which one has an id.
    assert_eq!(u32_at(&encoded.in_inode, 12), 4 + 5 * 4 + 4);
}

const COMMANDS: [&str; 14] = [
    "write 3000 a",
    "ea_set a user.name value",
    "ea_set a user.empty \"\"",
    "ea_set -f 3000 a user.long",
    "ea_set a trusted.overlay.opaque y",
    "mkdir d",
    "ea_set -f 1 d security.too_long",
    "ea_set d security.selinux system_u:object_r:bin_t:s0",
    "symlink l a",
    "ea_set l trusted.link some-value",
    "write 3000 b",
    "write 3000 c",
    "write 3000 e",
    "ea_set e user.short x",
];

/// The attributes of an inode.
fn of_inode(open: &OpenImage, number: u32) -> Vec<ExtendedAttribute> {
    let inode = open.inode(number);
    let mut all = decode_in_inode(&inode.in_inode).unwrap();
    if inode.file_acl != 0 {
        assert_eq!(users(open.block(inode.file_acl)).unwrap(), 1);
        all.extend(decode_block(open.block(inode.file_acl)).unwrap());
    }
    all.sort();
    all
}

#[test]
fn attributes_of_debugfs_are_decoded_and_e2fsck_takes_ours() {
    let Some(programs) = skip_without("attributes_of_debugfs_are_decoded", &["mke2fs", "debugfs", "e2fsck"])
    else {
        return;
    };
    let commands: Vec<_> = COMMANDS.into_iter().filter(|command| !command.contains("too_long")).collect();
    let image = Image::make(&programs[0], "32M", &["-O", "^metadata_csum,^has_journal"], &commands);
    let mut open = OpenImage::open(image.bytes());
    let content: Vec<u8> = (0..3000_usize).map(|at| (at % 251).to_le_bytes()[0] | 1).collect();
    assert_eq!(
        of_inode(&open, 12),
        [
            attribute("trusted.overlay.opaque", "y"),
            attribute("user.empty", ""),
            attribute("user.long", content.clone()),
            attribute("user.name", "value"),
        ]
    );
    assert_eq!(of_inode(&open, 13), [attribute("security.selinux", "system_u:object_r:bin_t:s0")]);
    assert_eq!(of_inode(&open, 14), [attribute("trusted.link", "some-value")]);

    // The same, as they are encoded here, and others in a block that was the content of another file.
    for number in [12, 13, 14] {
        let encoded = encode(&of_inode(&open, number), open.inode(number).attribute_space()).unwrap();
        let mut inode = open.inode(number);
        inode.in_inode = encoded.in_inode;
        assert_eq!(encoded.block.is_some(), inode.file_acl != 0);
        open.put_inode(number, &inode);
        if let Some(block) = encoded.block {
            open.put_block(inode.file_acl, &block);
        }
    }
    let many: Vec<_> =
        (0..30).map(|at| attribute(&format!("user.{}", "n".repeat(at + 1)), vec![3; 3 * at])).collect();
    let more =
        [many, vec![attribute("system.posix_acl_access", list()), attribute("security.capability", [5; 24])]]
            .concat();
    let encoded = encode(&more, 96).unwrap();
    let block = open.take_blocks(15)[0];
    let mut inode = open.inode(16);
    (inode.file_acl, inode.blocks, inode.in_inode) = (block, inode.blocks + 8, encoded.in_inode);
    open.put_inode(16, &inode);
    open.put_block(block, &encoded.block.unwrap());
    image.check(&programs[2], &open.bytes);
    let shown = image.shows("ea_list <16>", &programs[1]);
    assert!(
        shown.contains("security.capability (24)")
            && shown.contains("system.posix_acl_access (28) = 01 00 00 00 01 00 06 00 02 00 07 00 e8 03"),
        "{shown}"
    );
    assert_eq!(shown.lines().count(), 33, "{shown}");
    assert_eq!(image.shows("ea_get -V <12> user.name", &programs[1]).trim(), "value");
    assert!(image.shows("ea_get -V <12> user.long", &programs[1]).len() >= 3000);
}

#[test]
fn a_count_of_users_is_in_the_block() {
    let encoded = encode(&[attribute("user.a", vec![1; 200])], SPACE).unwrap();
    let mut block = encoded.block.unwrap();
    assert_eq!(users(&block).unwrap(), 1);
    set_users(&mut block, 9);
    assert_eq!(users(&block).unwrap(), 9);
    for at in [0, 8] {
        let mut damaged = block.clone();
        damaged[at] ^= 2;
        assert_eq!(users(&damaged).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert_eq!(decode_block(&[0; BLOCK_SIZE]).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn damaged_attributes_are_refused() {
    let encoded = encode(&[attribute("user.abcd", "12345678")], SPACE).unwrap();
    let good = encoded.in_inode;
    let changes: [(usize, u8, &str); 7] = [
        (4, 200, "their list has no end"),
        (5, 5, "has prefix 5, which is not known"),
        (5, 8, "does not go with its prefix"),
        (6, 2, "the value of user.abcd is outside their area"),
        (8, 1, "has its value in inode 1"),
        (13, 1, "the value of user.abcd is outside their area"),
        (17, 99, "user.abcd has a wrong hash"),
    ];
    for (at, byte, text) in changes {
        let mut area = good.clone();
        area[at] = byte;
        let error = decode_in_inode(&area).unwrap_err();
        assert!(error.to_string().contains(text), "{error}, not {text}");
    }
    // Old kernels did not compute a hash.
    let mut area = good;
    area[16..20].fill(0);
    assert_eq!(decode_in_inode(&area).unwrap().len(), 1);
    assert_eq!(decode_in_inode(&[]).unwrap(), []);
}

fn any_attribute() -> impl Strategy<Value = ExtendedAttribute> {
    let prefix = proptest::sample::select(vec!["user.", "trusted.", "security."]);
    (prefix, proptest::collection::vec(any::<u8>(), 1..12), proptest::collection::vec(any::<u8>(), 0..300))
        .prop_map(|(prefix, name, value)| ExtendedAttribute {
            name: [prefix.as_bytes(), &name].concat(),
            value,
        })
}

proptest! {
    #[test]
    fn all_attributes_come_back(
        attributes in proptest::collection::vec(any_attribute(), 0..30),
        space in (0_usize..32).prop_map(|words| 4 * words),
    ) {
        // A later one of the same name is left out.
        let unique: BTreeMap<_, _> = attributes.into_iter().map(|one| (one.name, one.value)).collect();
        let attributes: Vec<_> = unique.into_iter().map(|(name, value)| ExtendedAttribute { name, value }).collect();
        let total: usize = attributes.iter().map(|one| one.name.len() + one.value.len() + 6).sum();
        match encode(&attributes, space) {
            Ok(encoded) => {
                prop_assert_eq!(encoded.in_inode.len(), space);
                prop_assert_eq!(&decoded(&encoded), &attributes);
                let mut reversed = attributes;
                reversed.reverse();
                let again = encode(&reversed, space).unwrap();
                prop_assert_eq!(again.in_inode, encoded.in_inode);
                prop_assert!(again.block == encoded.block);
            }
            Err(error) => {
                prop_assert!(total > 3500, "{error}");
                prop_assert_eq!(error.kind(), ErrorKind::Unsupported);
            }
        }
    }

    #[test]
    fn hostile_attributes_do_no_harm(
        noise in proptest::collection::vec(any::<u8>(), 4..200),
        changes in proptest::collection::vec((4_usize..120, any::<u8>()), 1..4),
    ) {
        let mut area = noise;
        put_u32(&mut area, 0, MAGIC);
        let _ = decode_in_inode(&area);
        let two = [attribute("user.a", vec![1; 200]), attribute("user.b", "x")];
        let mut block = encode(&two, 0).unwrap().block.unwrap();
        for (at, byte) in changes {
            block[at] = byte;
        }
        let _ = decode_block(&block);
    }
}
