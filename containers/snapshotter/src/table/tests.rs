//! The table against a plain model, which follows containerd's metadata store line by line.

use super::*;
use crate::record::{SnapshotLabels, SnapshotTime, SnapshotUsage};
use headstart_block::ErrorKind;
use proptest::prelude::*;

const KEYS: [&str; 6] = ["", "a", "b", "c", "d", "e"];

#[derive(Clone, Debug)]
enum Operation {
    Create { wanted: WantedTree, key: usize, parent: usize, labels: SnapshotLabels },
    Adopt { key: usize, parent: usize },
    Commit { name: usize, key: usize, labels: SnapshotLabels, size: u64 },
    Update { key: usize, labels: SnapshotLabels, paths: Vec<String> },
    Remove { key: usize },
}

fn labels() -> impl Strategy<Value = SnapshotLabels> {
    let value = prop_oneof![Just(String::new()), Just("1".to_owned()), Just("2".to_owned())];
    prop::collection::btree_map("[xyz]", value, 0..3)
}

fn image(name: &str) -> RemoteLayer {
    RemoteLayer(name.to_owned())
}

fn wanted() -> impl Strategy<Value = WantedTree> {
    let disk = |access, blank: Option<&str>| WantedTree::Disk { access, blank: blank.map(image) };
    prop_oneof![
        2 => Just(WantedTree::View),
        3 => Just(WantedTree::Overlay),
        2 => Just(disk(DiskAccess::Directory, None)),
        2 => Just(disk(DiskAccess::Device, Some("blank"))),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = 0..KEYS.len();
    let path = prop_oneof![
        Just("labels".to_owned()),
        Just("labels.x".to_owned()),
        Just("labels.y".to_owned()),
        Just("parent".to_owned()),
    ];
    prop_oneof![
        4 => (wanted(), key.clone(), key.clone(), labels()).prop_map(|(wanted, key, parent, labels)| {
            Operation::Create { wanted, key, parent, labels }
        }),
        1 => (key.clone(), key.clone()).prop_map(|(key, parent)| Operation::Adopt { key, parent }),
        4 => (key.clone(), key.clone(), labels(), 0..9u64).prop_map(|(name, key, labels, size)| {
            Operation::Commit { name, key, labels, size }
        }),
        2 => (key.clone(), labels(), prop::collection::vec(path, 0..3)).prop_map(|(key, labels, paths)| {
            Operation::Update { key, labels, paths }
        }),
        3 => key.prop_map(|key| Operation::Remove { key }),
    ]
}

/// The image of a disk on a parent, by its state alone.
fn image_of(parent: Option<&SnapshotRecord>, blank: Option<&RemoteLayer>) -> Option<RemoteLayer> {
    match parent.map(|parent| &parent.state) {
        None => blank.cloned(),
        Some(SnapshotState::Committed { content: SnapshotContent::Remote(image), .. }) => Some(image.clone()),
        Some(SnapshotState::Committed { content: SnapshotContent::Sealed(image), .. }) => Some(image.clone()),
        Some(_) => None,
    }
}

/// The state of a new snapshot on a parent.
fn state_of(wanted: &WantedTree, parent: Option<&SnapshotRecord>) -> SnapshotState {
    match wanted {
        WantedTree::View => SnapshotState::View,
        WantedTree::Overlay => SnapshotState::Active,
        WantedTree::Disk { access, blank } => match image_of(parent, blank.as_ref()) {
            Some(image) => SnapshotState::ActiveDisk { access: *access, image },
            None => SnapshotState::Active,
        },
    }
}

/// The model: snapshots in a list.
#[derive(Default)]
struct Model {
    snapshots: Vec<SnapshotRecord>,
    last: u64,
}

impl Model {
    fn find(&self, key: &str) -> Result<usize, FaultKind> {
        self.snapshots.iter().position(|snapshot| snapshot.key == key).ok_or(FaultKind::NotFound)
    }

    fn parent(&self, parent: &str) -> Result<Option<String>, FaultKind> {
        if parent.is_empty() {
            return Ok(None);
        }
        let parent = &self.snapshots[self.find(parent)?];
        let is_fit = parent.kind() == SnapshotKind::Committed;
        if is_fit { Ok(Some(parent.key.clone())) } else { Err(FaultKind::InvalidArgument) }
    }

    fn check_new(&self, key: &str) -> Result<(), FaultKind> {
        match self.find(key) {
            _ if key.is_empty() => Err(FaultKind::InvalidArgument),
            Ok(_) => Err(FaultKind::AlreadyExists),
            Err(_) => Ok(()),
        }
    }

    fn add(
        &mut self,
        key: &str,
        parent: Option<String>,
        state: SnapshotState,
        labels: &SnapshotLabels,
        at: SnapshotTime,
    ) {
        self.last += 1;
        let mut labels = labels.clone();
        labels.retain(|_, value| !value.is_empty());
        let id = SnapshotId(self.last);
        let record =
            SnapshotRecord { id, key: key.to_owned(), parent, state, labels, created: at, updated: at };
        self.snapshots.push(record);
    }

    fn run(&mut self, operation: &Operation, at: SnapshotTime) -> Result<(), FaultKind> {
        match operation {
            Operation::Create { wanted, key, parent, labels } => {
                let below = self.find(KEYS[*parent]).ok().map(|at| self.snapshots[at].clone());
                let parent = self.parent(KEYS[*parent])?;
                self.check_new(KEYS[*key])?;
                self.add(KEYS[*key], parent, state_of(wanted, below.as_ref()), labels, at);
            }
            Operation::Adopt { key, parent } => {
                let parent = self.parent(KEYS[*parent])?;
                self.check_new(KEYS[*key])?;
                let content = SnapshotContent::Remote(RemoteLayer(KEYS[*key].to_owned()));
                let state = SnapshotState::Committed { usage: SnapshotUsage::default(), content };
                self.add(KEYS[*key], parent, state, &SnapshotLabels::new(), at);
            }
            Operation::Commit { name, key, labels, size } => {
                let at_key = self.find(KEYS[*key])?;
                self.check_new(KEYS[*name])?;
                let snapshot = &mut self.snapshots[at_key];
                let content = match &snapshot.state {
                    SnapshotState::Active => SnapshotContent::Directory,
                    SnapshotState::ActiveDisk { image, .. } => SnapshotContent::Sealed(image.clone()),
                    _ => return Err(FaultKind::FailedPrecondition),
                };
                let usage = SnapshotUsage { inodes: 1, size: *size };
                snapshot.state = SnapshotState::Committed { usage, content };
                KEYS[*name].clone_into(&mut snapshot.key);
                (snapshot.created, snapshot.updated) = (at, at);
                snapshot.labels.clone_from(labels);
                snapshot.labels.retain(|_, value| !value.is_empty());
            }
            Operation::Update { key, labels, paths } => {
                let at_key = self.find(KEYS[*key])?;
                if paths.iter().any(|path| path == "parent") {
                    return Err(FaultKind::InvalidArgument);
                }
                let snapshot = &mut self.snapshots[at_key];
                if paths.is_empty() {
                    snapshot.labels.clone_from(labels);
                }
                for path in paths {
                    match path.split_once('.') {
                        Some((_, label)) => {
                            snapshot.labels.remove(label);
                            snapshot
                                .labels
                                .extend(labels.get(label).map(|value| (label.to_owned(), value.clone())));
                        }
                        None => snapshot.labels.clone_from(labels),
                    }
                }
                snapshot.labels.retain(|_, value| !value.is_empty());
                snapshot.updated = at;
            }
            Operation::Remove { key } => {
                let at_key = self.find(KEYS[*key])?;
                let is_parent = |other: &SnapshotRecord| other.parent.as_deref() == Some(KEYS[*key]);
                if self.snapshots.iter().any(is_parent) {
                    return Err(FaultKind::FailedPrecondition);
                }
                self.snapshots.remove(at_key);
            }
        }
        Ok(())
    }
}

fn plan(
    table: &mut SnapshotTable,
    operation: &Operation,
    now: SnapshotTime,
) -> FaultResult<Vec<SnapshotStep>> {
    match operation {
        Operation::Create { wanted, key, parent, labels } => {
            Ok(table.create(wanted.clone(), KEYS[*key], KEYS[*parent], labels.clone(), now)?.1)
        }
        Operation::Adopt { key, parent } => {
            let layer = (RemoteLayer(KEYS[*key].to_owned()), SnapshotUsage::default());
            table.adopt(KEYS[*key], KEYS[*parent], SnapshotLabels::new(), layer, now)
        }
        Operation::Commit { name, key, labels, size } => {
            let id = table.check_commit(KEYS[*name], KEYS[*key])?;
            let usage = SnapshotUsage { inodes: 1, size: *size };
            table.commit(KEYS[*name], (KEYS[*key], id), labels.clone(), usage, now)
        }
        Operation::Update { key, labels, paths } => table.update(KEYS[*key], labels, paths, now),
        Operation::Remove { key } => table.remove(KEYS[*key], false),
    }
}

/// The change among steps.
fn recorded(steps: Vec<SnapshotStep>) -> SnapshotChange {
    let change = steps.into_iter().find_map(|step| match step {
        SnapshotStep::Record(change) => Some(change),
        _ => None,
    });
    change.expect("each plan has one")
}

proptest! {
    #[test]
    fn the_table_is_containerds(operations in prop::collection::vec(operation(), 0..60)) {
        let (mut table, mut model) = (SnapshotTable::default(), Model::default());
        let mut replayed = SnapshotTable::default();
        for (second, operation) in (0..).zip(&operations) {
            let now = SnapshotTime { seconds: second, nanos: 0 };
            let planned = plan(&mut table, operation, now);
            let expected = model.run(operation, now);
            prop_assert_eq!(planned.as_ref().map(drop).map_err(|fault| fault.kind), expected, "{:?}", operation);
            if let Ok(steps) = planned {
                let change = recorded(steps);
                table.apply(change.clone()).unwrap();
                replayed.apply(change).unwrap();
            }
            let mut all: Vec<_> = table.all().cloned().collect();
            all.sort_by_key(|record| record.id);
            prop_assert_eq!(&all, &model.snapshots);
            prop_assert_eq!(&replayed, &table);
            let mut kept = SnapshotTable::default();
            table.changes().for_each(|change| kept.apply(change).unwrap());
            prop_assert_eq!(&kept, &table);
        }
    }

    #[test]
    fn changes_in_any_order_are_applied_or_refused(
        operations in prop::collection::vec(operation(), 0..30),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let mut table = SnapshotTable::default();
        let mut changes = Vec::new();
        for operation in &operations {
            if let Ok(steps) = plan(&mut table, operation, SnapshotTime::default()) {
                changes.push(recorded(steps));
                table.apply(changes[changes.len() - 1].clone()).unwrap();
            }
        }
        let mut other = SnapshotTable::default();
        for index in order.iter().filter(|_| !changes.is_empty()) {
            let before = other.clone();
            if let Err(error) = other.apply(index.get(&changes).clone()) {
                prop_assert_eq!(error.kind(), ErrorKind::Corrupt);
                prop_assert_eq!(&other, &before);
            }
            for record in other.all() {
                prop_assert!(record.parent.as_deref().is_none_or(|parent| other.get(parent).is_ok()));
            }
        }
    }
}

/// A table with layers `one` and `two` on it, an active snapshot on both and a view of one.
fn example() -> SnapshotTable {
    let mut table = SnapshotTable::default();
    let create = |wanted, key, parent| Operation::Create { wanted, key, parent, labels: labels_of(&[]) };
    let commit = |name, key| Operation::Commit { name, key, labels: labels_of(&[]), size: 5 };
    for operation in [
        create(WantedTree::Overlay, 1, 0),
        commit(2, 1),
        create(WantedTree::Overlay, 1, 2),
        commit(3, 1),
        create(WantedTree::Overlay, 4, 3),
        create(WantedTree::View, 5, 2),
    ] {
        let steps = plan(&mut table, &operation, SnapshotTime::default()).unwrap();
        table.apply(recorded(steps)).unwrap();
    }
    table
}

fn labels_of(labels: &[(&str, &str)]) -> SnapshotLabels {
    labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_tree_has_its_layers_from_the_top() {
    let table = example();
    let directory = |id| (SnapshotId(id), SnapshotContent::Directory);
    let layers = vec![directory(2), directory(1)];
    let tree = SnapshotTree { id: SnapshotId(3), is_writable: true, disk: None, layers };
    assert_eq!(table.tree("d").unwrap(), tree);
    let layers = vec![directory(1)];
    let tree = SnapshotTree { id: SnapshotId(4), is_writable: false, disk: None, layers };
    assert_eq!(table.tree("e").unwrap(), tree);
    assert_eq!(table.tree("b").unwrap_err().kind, FaultKind::FailedPrecondition);
    assert_eq!(table.tree("a").unwrap_err().kind, FaultKind::NotFound);
}

#[test]
fn a_snapshots_directory_is_durable_before_its_record() {
    let mut table = example();
    let (id, steps) =
        table.create(WantedTree::Overlay, "a", "b", labels_of(&[]), SnapshotTime::default()).unwrap();
    let places = |wanted: &dyn Fn(&SnapshotStep) -> bool| steps.iter().position(wanted);
    let renamed =
        places(&|step| matches!(step, SnapshotStep::Rename { to, .. } if *to == SnapshotPlace::Of(id)));
    let durable = places(&|step| *step == SnapshotStep::Sync(SnapshotPlace::All));
    let record = places(&|step| matches!(step, SnapshotStep::Record(_)));
    assert!(renamed.is_some() && renamed < durable && durable < record, "{steps:?}");
    let owner = SnapshotStep::CopyOwner {
        from: SnapshotPlace::Upper(SnapshotId(1)),
        to: SnapshotPlace::NewUpper(id),
    };
    assert!(steps.contains(&owner));
}

#[test]
fn a_key_that_was_prepared_anew_is_not_committed_as_the_old_one() {
    let mut table = example();
    let id = table.check_commit("x", "d").unwrap();
    for operation in [
        Operation::Remove { key: 4 },
        Operation::Create { wanted: WantedTree::Overlay, key: 4, parent: 0, labels: labels_of(&[]) },
    ] {
        let steps = plan(&mut table, &operation, SnapshotTime::default()).unwrap();
        table.apply(recorded(steps)).unwrap();
    }
    let commit =
        table.commit("x", ("d", id), labels_of(&[]), SnapshotUsage::default(), SnapshotTime::default());
    assert_eq!(commit.unwrap_err().kind, FaultKind::NotFound);
}

#[test]
fn a_disk_is_made_on_disks_only_and_has_the_sealed_layers_up_to_the_image() {
    let mut table = SnapshotTable::default();
    let run = |table: &mut SnapshotTable, operation: Operation| {
        let steps = plan(table, &operation, SnapshotTime::default()).unwrap();
        table.apply(recorded(steps.clone())).unwrap();
        steps
    };
    let disk = |key, parent| {
        let wanted = WantedTree::Disk { access: DiskAccess::Directory, blank: None };
        Operation::Create { wanted, key, parent, labels: labels_of(&[]) }
    };
    let commit = |name, key| Operation::Commit { name, key, labels: labels_of(&[]), size: 1 };
    run(&mut table, Operation::Adopt { key: 1, parent: 0 });
    for name in [3, 4] {
        let steps = run(&mut table, disk(2, name - 2 + usize::from(name == 4)));
        let block = SnapshotPlace::NewBlock(table.last_id());
        assert!(steps.contains(&SnapshotStep::MakeDirectory { place: block, mode: 0o700 }), "{steps:?}");
        let parts = table.disk("b").unwrap();
        assert_eq!((parts.image, parts.above.len()), (image("a"), name - 3));
        let steps = run(&mut table, commit(name, 2));
        let left = SnapshotStep::LeaveDisk(table.last_id());
        assert_eq!(steps.last(), Some(&left), "the layer is recorded before");
    }
    let parts = table.disk("d").unwrap();
    assert_eq!((&parts.image, &parts.above), (&image("a"), &vec![SnapshotId(2), SnapshotId(3)]));
    // Overlayfs on it has the files of that disk, and its root their owner, which no directory here tells.
    let overlay =
        Operation::Create { wanted: WantedTree::Overlay, key: 2, parent: 4, labels: labels_of(&[]) };
    let steps = run(&mut table, overlay);
    assert!(!steps.iter().any(|step| matches!(step, SnapshotStep::CopyOwner { .. })), "{steps:?}");
    assert_eq!(table.tree("b").unwrap().top_disk(), Some((0, parts.clone())));
    run(&mut table, commit(5, 2));
    // Above a directory there is no disk.
    run(&mut table, disk(2, 5));
    let tree = table.tree("b").unwrap();
    assert_eq!((tree.disk, tree.top_disk()), (None, Some((1, parts))));
    assert_eq!(table.disk("b"), None);
}

#[test]
fn the_disk_of_a_removed_snapshot_is_closed_before_its_files_go() {
    let mut table = SnapshotTable::default();
    let wanted = WantedTree::Disk { access: DiskAccess::Device, blank: Some(image("blank")) };
    let (id, steps) = table.create(wanted, "a", "", labels_of(&[]), SnapshotTime::default()).unwrap();
    table.apply(recorded(steps)).unwrap();
    for keep_files in [false, true] {
        let steps = table.remove("a", keep_files).unwrap();
        assert_eq!(steps[1..3], [SnapshotStep::CloseDisk(id), SnapshotStep::Forget(image("blank"))]);
        assert_eq!(steps[3..].is_empty(), keep_files);
    }
    let commit =
        table.commit("c", ("a", id), labels_of(&[]), SnapshotUsage::default(), SnapshotTime::default());
    table.apply(recorded(commit.unwrap())).unwrap();
    let misplaced = SnapshotChange::Created {
        id: SnapshotId(2),
        key: "b".to_owned(),
        parent: Some("c".to_owned()),
        state: SnapshotState::ActiveDisk { access: DiskAccess::Device, image: image("another") },
        labels: labels_of(&[]),
        at: SnapshotTime::default(),
    };
    assert_eq!(table.apply(misplaced).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn keys_are_as_long_as_containerds() {
    let mut table = SnapshotTable::default();
    let create = |table: &mut SnapshotTable, len| {
        table
            .create(WantedTree::Overlay, &"k".repeat(len), "", labels_of(&[]), SnapshotTime::default())
            .map(drop)
    };
    assert!(create(&mut table, KEY_MOST).is_ok());
    assert_eq!(create(&mut table, KEY_MOST + 1).unwrap_err().kind, FaultKind::InvalidArgument);
}
