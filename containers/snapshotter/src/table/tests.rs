//! The table against a plain model, which follows containerd's metadata store line by line.

use super::*;
use crate::record::{RemoteLayer, SnapshotLabels, SnapshotTime, SnapshotUsage};
use headstart_block::ErrorKind;
use proptest::prelude::*;

const KEYS: [&str; 6] = ["", "a", "b", "c", "d", "e"];

#[derive(Clone, Debug)]
enum Operation {
    Create { is_writable: bool, key: usize, parent: usize, labels: SnapshotLabels },
    Adopt { key: usize, parent: usize },
    Commit { name: usize, key: usize, labels: SnapshotLabels, size: u64 },
    Update { key: usize, labels: SnapshotLabels, paths: Vec<String> },
    Remove { key: usize },
}

fn labels() -> impl Strategy<Value = SnapshotLabels> {
    let value = prop_oneof![Just(String::new()), Just("1".to_owned()), Just("2".to_owned())];
    prop::collection::btree_map("[xyz]", value, 0..3)
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
        4 => (any::<bool>(), key.clone(), key.clone(), labels()).prop_map(|(is_writable, key, parent, labels)| {
            Operation::Create { is_writable, key, parent, labels }
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
            Operation::Create { is_writable, key, parent, labels } => {
                let parent = self.parent(KEYS[*parent])?;
                self.check_new(KEYS[*key])?;
                let state = if *is_writable { SnapshotState::Active } else { SnapshotState::View };
                self.add(KEYS[*key], parent, state, labels, at);
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
                if snapshot.state != SnapshotState::Active {
                    return Err(FaultKind::FailedPrecondition);
                }
                let usage = SnapshotUsage { inodes: 1, size: *size };
                snapshot.state = SnapshotState::Committed { usage, content: SnapshotContent::Directory };
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
        Operation::Create { is_writable, key, parent, labels } => {
            Ok(table.create(*is_writable, KEYS[*key], KEYS[*parent], labels.clone(), now)?.1)
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
    let create =
        |is_writable, key, parent| Operation::Create { is_writable, key, parent, labels: labels_of(&[]) };
    let commit = |name, key| Operation::Commit { name, key, labels: labels_of(&[]), size: 5 };
    for operation in [
        create(true, 1, 0),
        commit(2, 1),
        create(true, 1, 2),
        commit(3, 1),
        create(true, 4, 3),
        create(false, 5, 2),
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
    let tree =
        SnapshotTree { id: SnapshotId(3), is_writable: true, layers: vec![directory(2), directory(1)] };
    assert_eq!(table.tree("d").unwrap(), tree);
    let tree = SnapshotTree { id: SnapshotId(4), is_writable: false, layers: vec![directory(1)] };
    assert_eq!(table.tree("e").unwrap(), tree);
    assert_eq!(table.tree("b").unwrap_err().kind, FaultKind::FailedPrecondition);
    assert_eq!(table.tree("a").unwrap_err().kind, FaultKind::NotFound);
}

#[test]
fn a_snapshots_directory_is_durable_before_its_record() {
    let mut table = example();
    let (id, steps) = table.create(true, "a", "b", labels_of(&[]), SnapshotTime::default()).unwrap();
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
        Operation::Create { is_writable: true, key: 4, parent: 0, labels: labels_of(&[]) },
    ] {
        let steps = plan(&mut table, &operation, SnapshotTime::default()).unwrap();
        table.apply(recorded(steps)).unwrap();
    }
    let commit =
        table.commit("x", ("d", id), labels_of(&[]), SnapshotUsage::default(), SnapshotTime::default());
    assert_eq!(commit.unwrap_err().kind, FaultKind::NotFound);
}

#[test]
fn keys_are_as_long_as_containerds() {
    let mut table = SnapshotTable::default();
    let create = |table: &mut SnapshotTable, len| {
        table.create(true, &"k".repeat(len), "", labels_of(&[]), SnapshotTime::default()).map(drop)
    };
    assert!(create(&mut table, KEY_MOST).is_ok());
    assert_eq!(create(&mut table, KEY_MOST + 1).unwrap_err().kind, FaultKind::InvalidArgument);
}
