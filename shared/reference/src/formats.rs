//! The pages of formats. A page of a format on disk consists of the comments at the head of the modules that read and
//! write the format. The page of messages between hosts has the head of the module of frames, and the comments of the
//! enums of messages. The page of timers has the constants that decide on timeouts.

use crate::markdown::{escaped, table};
use crate::source::{comment, files, head, parsed, read, unlinked};
use crate::{Result, SitePage};
use std::fmt::Write;
use std::path::Path;
use syn::{Expr, Fields, Item, ItemEnum, Lit, Type};

/// A page of a format: its name, its title, and the modules whose heads it consists of.
type Format = (&'static str, &'static str, &'static [&'static str]);

/// The formats, in the order of the reference.
const FORMATS: [Format; 12] = [
    (
        "image",
        "Images: manifests, hash trees, tar wrappers",
        &["core/image/src/manifest.rs", "core/hash-tree/src/lib.rs", "core/image/src/tar_wrapper.rs"],
    ),
    ("lsmt", "LSMT layers", &["core/lsmt/src/format.rs", "core/lsmt/src/segment.rs"]),
    ("zfile", "ZFile", &["core/zfile/src/format.rs"]),
    (
        "turbo",
        "TurboOCI: indexes of gzip files, packages",
        &["core/turbo/src/format.rs", "core/turbo/src/package.rs", "core/image/src/turbo.rs"],
    ),
    (
        "erofs",
        "EROFS file systems of converted images",
        &[
            "containers/erofs/src/lib.rs",
            "containers/erofs/src/superblock.rs",
            "containers/erofs/src/inode.rs",
            "containers/erofs/src/xattr.rs",
            "containers/erofs/src/dirents.rs",
        ],
    ),
    (
        "store",
        "Image directories: leases and marks",
        &["core/store/src/layout/lease.rs", "core/store/src/layout/untagged.rs"],
    ),
    (
        "writable",
        "Writable directories",
        &[
            "core/lsmt/src/writable.rs",
            "core/lsmt/src/writable/log.rs",
            "core/lsmt/src/writable/noted.rs",
            "core/lsmt/src/writable/pending.rs",
            "core/lsmt/src/writable/clone.rs",
            "core/image/src/served_disk.rs",
            "disk/diskd/src/freezing.rs",
        ],
    ),
    ("cache", "The cache", &["disk/cache/src/sidecar.rs", "disk/disk/src/grants.rs"]),
    ("credentials", "Credentials for pulling", &["core/store/src/pull_credentials.rs"]),
    (
        "learned",
        "Traces and plans",
        &[
            "learn/trace/src/file.rs",
            "learn/plan/src/container.rs",
            "learn/plan/src/artifact.rs",
            "core/image/src/plan_artifact.rs",
            "learn/plan/src/overlaybd_trace.rs",
        ],
    ),
    (
        "harvest",
        "The journal and the flash of harvest",
        &["harvest/flash/src/journal.rs", "harvest/flash/src/device/table.rs"],
    ),
    ("snapshots", "The journal of snapshots", &["containers/snapshotter/src/journal.rs"]),
];

/// The modules whose numbers are factors of times, and counts of tries.
const WAITING: [&str; 2] = ["/node/timeouts.rs", "/retransmit_timer.rs"];

/// The wing in which messages between hosts and their timers are.
const FLEET: &str = "fleet";

/// Generates the pages of formats on disk, the page of messages between hosts, and the page of timers, from the sources
/// in the repository at `root`.
///
/// # Errors
///
/// A source file cannot be read or is not valid Rust; a listed module has no comment at its head; the enum of messages
/// or the timers are not found.
pub fn pages(root: &Path) -> Result<Vec<SitePage>> {
    let mut pages = Vec::new();
    for (name, title, modules) in FORMATS {
        let mut body = String::new();
        for module in modules {
            let _ = writeln!(body, "{}\n", section(root, module)?);
        }
        pages.push(SitePage::new(format!("reference/formats/{name}.md"), title, &body));
    }
    pages.push(wire(root)?);
    pages.push(timers(root)?);
    Ok(pages)
}

/// The head of a module as a section: its first sentence is the heading's place, its headings are below.
fn section(root: &Path, module: &str) -> Result<String> {
    let text = unlinked(&head(&read(&root.join(module))?));
    if text.is_empty() {
        return Err(format!("{module} has no head").into());
    }
    let name = module.rsplit('/').next().unwrap_or(module).trim_end_matches(".rs");
    let mut section = format!("## `{name}`\n\nThe head of `{module}`.\n\n");
    let mut in_block = false;
    for line in text.lines() {
        in_block ^= line.starts_with("```");
        let deeper = if line.starts_with('#') && !in_block { "##" } else { "" };
        let _ = writeln!(section, "{deeper}{line}");
    }
    Ok(section)
}

/// The page of the connections between hosts: frames, and the messages in them.
fn wire(root: &Path) -> Result<SitePage> {
    let mut body = String::new();
    let mut messages = 0;
    for path in files(&root.join(FLEET))? {
        let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
        if name.ends_with("/frame.rs") {
            body.insert_str(0, &section(root, &name)?);
        }
        if !name.ends_with("/message.rs") {
            continue;
        }
        for item in &parsed(&path)?.items {
            if let Item::Enum(item) = item {
                messages += usize::from(item.ident == "Message");
                body.push_str(&variants(item));
            }
        }
    }
    if messages != 1 {
        return Err(format!("{messages} enums named Message are below {FLEET}/").into());
    }
    Ok(SitePage::new("reference/formats/swarm.md", "Messages between hosts", &body))
}

/// The variants of an enum as a table.
fn variants(item: &ItemEnum) -> String {
    let rows: Vec<_> = item
        .variants
        .iter()
        .map(|variant| {
            let fields = match &variant.fields {
                Fields::Named(fields) => fields.named.iter().map(|field| {
                    let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    format!("`{name}`: {}", escaped(&comment(&field.attrs)))
                }),
                Fields::Unnamed(_) | Fields::Unit => {
                    return [
                        format!("`{}`", variant.ident),
                        escaped(&comment(&variant.attrs)),
                        String::new(),
                    ];
                }
            };
            let fields = fields.collect::<Vec<_>>().join("<br>");
            [format!("`{}`", variant.ident), escaped(&comment(&variant.attrs)), fields]
        })
        .collect();
    let listed = table(["variant", "meaning", "fields"], &rows);
    format!("## {}\n\n{}\n\n{listed}\n", item.ident, escaped(&comment(&item.attrs)))
}

/// The page of the constants of time in the fleet wing.
fn timers(root: &Path) -> Result<SitePage> {
    let mut rows = Vec::new();
    for path in files(&root.join(FLEET))? {
        let module = path.strip_prefix(root)?.to_string_lossy().into_owned();
        for item in &parsed(&path)?.items {
            let Item::Const(item) = item else { continue };
            let is_time = matches!(&*item.ty, Type::Path(path) if path.path.is_ident("Duration"));
            let value = match is_time {
                true => time(&item.expr),
                false => {
                    WAITING.iter().any(|file| module.ends_with(file)).then(|| number(&item.expr)).flatten()
                }
            };
            let meaning = comment(&item.attrs);
            if let (false, Some(value)) = (meaning.is_empty(), value) {
                rows.push([format!("`{}`", item.ident), value, escaped(&meaning), format!("`{module}`")]);
            }
        }
    }
    if rows.is_empty() {
        return Err(format!("no constants of time are below {FLEET}/").into());
    }
    let body = format!(
        "The constants of time in the code of the agent and of the swarm's state machine, and the numbers in its rules \
         of waiting.\n\n{}",
        table(["constant", "value", "meaning", "place"], &rows)
    );
    Ok(SitePage::new("reference/timers.md", "Timers of the swarm", &body))
}

/// The value of a whole number that stands there as it is.
fn number(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => Some(number.base10_digits().to_owned()),
            _ => None,
        },
        _ => None,
    }
}

/// The value of `Duration::from_secs(5)` in words; of a number that depends on the build, none.
fn time(value: &Expr) -> Option<String> {
    let Expr::Call(call) = value else { return None };
    let Expr::Path(function) = &*call.func else { return None };
    let unit = match function.path.segments.last()?.ident.to_string().as_str() {
        "from_secs" => "s",
        "from_millis" => "ms",
        "from_micros" => "us",
        _ => return None,
    };
    let mut number = call.args.first()?;
    // `if cfg!(test) { 20 } else { 2000 }`: the product's number is the second.
    while let Expr::If(choice) = number {
        let (_, otherwise) = choice.else_branch.as_ref()?;
        let Expr::Block(block) = &**otherwise else { return None };
        let syn::Stmt::Expr(last, None) = block.block.stmts.last()? else { return None };
        number = last;
    }
    let Expr::Lit(literal) = number else { return None };
    let Lit::Int(number) = &literal.lit else { return None };
    Some(format!("{} {unit}", number.base10_digits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_product() {
        let of = |text: &str| time(&syn::parse_str(text).unwrap());
        assert_eq!(of("Duration::from_secs(5)").as_deref(), Some("5 s"));
        assert_eq!(of("Duration::from_millis(1_500)").as_deref(), Some("1500 ms"));
        assert_eq!(
            of("Duration::from_millis(if cfg!(test) { 20 } else { 2000 })").as_deref(),
            Some("2000 ms")
        );
        assert_eq!(of("LONG.min(SHORT)"), None);
    }

    #[test]
    fn variants_are_rows_with_their_fields() {
        let item = "/// Words.\nenum Message { /// Give [`Chunks`].\n
                    Ask { /// The blob.\n blob: u32, /// Which.\n chunks: u32 },
                    /// No.\n Refuse }";
        let text = variants(&syn::parse_str(item).unwrap());
        assert!(
            text.contains("| `Ask` | Give `Chunks`. | `blob`: The blob.<br>`chunks`: Which. |"),
            "{text}"
        );
        assert!(text.contains("| `Refuse` | No. |  |"), "{text}");
    }
}
