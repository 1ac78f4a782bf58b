//! Inputs of the targets for snapshots.

use headstart_block::{Error, Result};
use headstart_fuzz::scratch_directory;
use headstart_snapshotter::fault::SnapshotFault;
use headstart_snapshotter::journal::SnapshotJournal;
use headstart_snapshotter::record::{
    SnapshotContent, SnapshotId, SnapshotLabels, SnapshotState, SnapshotTime, SnapshotUsage,
};
use headstart_snapshotter::table::SnapshotChange;
use std::fs;

/// Filters with each operator and each kind of quotes.
pub(crate) const FILTERS: [(&str, &str); 3] = [
    ("fields", "kind==active,labels.\"containerd.io/gc.root\",parent!=base"),
    ("regular-expression", "name~=/^sha256:[0-9a-f]+$/,labels.a.b~=|x|"),
    ("quoted", "name==\"a \\u00e9\\x41\\n\""),
];

/// A journal with a change of each kind.
pub(crate) fn journal() -> Result<Vec<u8>> {
    let directory = scratch_directory()?;
    let path = directory.path().join("journal");
    let (mut journal, _) = SnapshotJournal::open(&path, |_| Ok(()))?;
    let (id, at) = (SnapshotId(1), SnapshotTime { seconds: 1_700_000_000, nanos: 5 });
    let labels = SnapshotLabels::from([("a".to_owned(), "b".to_owned())]);
    let (usage, key) = (SnapshotUsage { inodes: 2, size: 4096 }, "one".to_owned());
    let active = SnapshotState::Active;
    let remote = SnapshotContent::Remote(headstart_snapshotter::record::RemoteLayer("tree".to_owned()));
    let committed = SnapshotState::Committed { usage, content: remote };
    let created = |id, key: &str, parent: Option<&str>, state| SnapshotChange::Created {
        id,
        key: key.to_owned(),
        parent: parent.map(str::to_owned),
        state,
        labels: labels.clone(),
        at,
    };
    for change in [
        created(id, "one", None, active),
        SnapshotChange::Committed { key, name: "layer".to_owned(), labels: labels.clone(), usage, at },
        created(SnapshotId(2), "top", Some("layer"), committed),
        created(SnapshotId(3), "look", Some("top"), SnapshotState::View),
        SnapshotChange::Updated { key: "look".to_owned(), labels: SnapshotLabels::new(), at },
        SnapshotChange::Removed { key: "look".to_owned() },
        SnapshotChange::Numbered(SnapshotId(7)),
    ] {
        journal.append(&change).map_err(|fault: SnapshotFault| Error::invalid(fault.to_string()))?;
    }
    Ok(fs::read(&path)?)
}
