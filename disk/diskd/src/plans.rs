//! The lookup of plans for a disk: all the places where plans can be, and the search of these places while the disk is
//! being attached. The table has the places, and the [`Origin`] of the plans that each may have:
//!
//! | place | origin |
//! |---|---|
//! | an artifact beside the image in its store | [`Origin::Artifact`] |
//! | files of plans on this host | [`Origin::File`], [`Origin::ZeroShot`] |
//! | the image's boot layer | [`Origin::BootLayer`] |
//! | the image's trace layer | [`Origin::TraceLayer`] |
//! | a file that the user names | [`Origin::Given`] |
//!
//! Either the user names a file, and only that is searched; or all other places are searched at the same time, each for
//! at most [`SEARCH_TIMEOUT`]. The disk is given plans as they are found, follows the best so far, and never waits for
//! the search.

use crate::record_settings::RecordSettings;
use futures::future::BoxFuture;
use headstart_block::words::count;
use headstart_block::{BlockDevice, Error, ErrorKind, FileSource, PlanItem, Result};
use headstart_disk::preloading::OpenedDisk;
use headstart_disk::{PlanFinding, PlanQuery, PlanSource};
use headstart_image::acceleration;
use headstart_image::optimize::boot_order;
use headstart_image::plan_artifact;
use headstart_plan::knowledge::RecordedImage;
use headstart_plan::overlaybd_trace::{self, TRACE_MAX};
use headstart_plan::zero_shot::{ChoiceReason, Metadata};
use headstart_plan::{ImagePlans, PlanFile};
use headstart_preload::plans::{laid_out, of_items};
use headstart_preload::{Origin, PlanCandidate};
use headstart_train::layer_map;
use std::cmp::Reverse;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

/// The most files of plans in a directory that are read; the first by name.
const FILES_MAX: usize = 64;

/// The maximum duration of the search for a disk's preload plans in one location, including the wait until the disk is
/// open.
pub const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Findings that wait for the disk, which takes them every few milliseconds.
const FINDINGS_MAX: usize = 8;

/// The search for preload plans in a session's locations.
pub struct PlanLookup {
    locations: PlanLocations,
    labels: RecordSettings,
}

/// The locations in which preload plans are searched.
#[derive(Clone, Debug)]
pub enum PlanLocations {
    /// The plans and traces that belong to the image, in its store, and files of plans on this host.
    All {
        /// A file of plans, or a directory of such files, of which the first 64 by name are read; hidden ones are left
        /// out.
        files: PathBuf,
        /// `true` if a missing `files` is reported as a failure; `false` if it only means that no plans are there.
        named: bool,
    },
    /// A single file of plans.
    Plans(PathBuf),
    /// A single trace file of `OverlayBD`'s prefetcher.
    Trace(PathBuf),
}

impl PlanLookup {
    /// Creates a search in `locations`. `labels` has the user's labels of the disks, by which plans of
    /// similar images are chosen.
    #[must_use]
    pub fn new(locations: PlanLocations, labels: &RecordSettings) -> Self {
        Self { locations, labels: labels.clone() }
    }

    /// The searches for a disk.
    fn searches(&self, query: &Arc<PlanQuery>) -> Vec<Search> {
        let metadata = self.labels.metadata(&query.manifest);
        let entrypoint = self.labels.expected_entrypoint.clone();
        match &self.locations {
            PlanLocations::All { files, named } => {
                let beside = artifact(Arc::clone(query), entrypoint.clone());
                let files = Files { path: files.clone(), named: *named, given: false, metadata, entrypoint };
                vec![
                    search("the plan beside the image", beside),
                    search("the image's trace layer", trace_layer(Arc::clone(query))),
                    on_open("the image's boot layer", query, |query, opened| {
                        Ok(boot_layer(query, opened)).into()
                    }),
                    on_open("a file of plans", query, move |query, opened| files.answer(query, opened)),
                ]
            }
            PlanLocations::Plans(file) => {
                let files = Files { path: file.clone(), named: true, given: true, metadata, entrypoint };
                vec![on_open("the plan", query, move |query, opened| files.answer(query, opened))]
            }
            PlanLocations::Trace(file) => {
                let file = file.clone();
                vec![on_open("the trace", query, move |_, opened| trace_file(&file, opened).into())]
            }
        }
    }
}

impl PlanSource for PlanLookup {
    fn look(&self, query: Arc<PlanQuery>, runtime: &Handle) -> Receiver<PlanFinding> {
        let mut searches = JoinSet::new();
        for Search { place, answer } in self.searches(&query) {
            let in_time = async move {
                let answer = timeout(SEARCH_TIMEOUT, answer).await.unwrap_or_else(|_| {
                    let error = format!("does not answer within {} s", SEARCH_TIMEOUT.as_secs());
                    Err(Error::new(ErrorKind::Unavailable, error)).into()
                });
                PlanFinding { place, candidate: answer.candidate, failures: answer.failures }
            };
            searches.spawn_on(in_time, runtime);
        }
        let (findings, receiver) = mpsc::channel(FINDINGS_MAX);
        runtime.spawn(pass_on(searches, findings));
        receiver
    }
}

/// Passes the findings on as they come, until all searches are over or the disk is gone; then the others end.
async fn pass_on(mut searches: JoinSet<PlanFinding>, findings: Sender<PlanFinding>) {
    loop {
        let ended = tokio::select! {
            ended = searches.join_next() => ended,
            () = findings.closed() => return,
        };
        let Some(ended) = ended else { return };
        let finding = ended.unwrap_or_else(|e| {
            let place = "a place to look for plans";
            PlanFinding { place, candidate: None, failures: broken_off(Err(e)).failures }
        });
        if findings.send(finding).await.is_err() {
            return;
        }
    }
}

/// A search in one place.
struct Search {
    /// The name of the place, for a message.
    place: &'static str,
    answer: BoxFuture<'static, Answer>,
}

/// The result of a search.
#[derive(Debug, Default)]
struct Answer {
    /// The plans that were found.
    candidate: Option<PlanCandidate>,
    /// The errors of plans that are there and cannot be used.
    failures: Vec<Error>,
}

impl From<Result<Option<PlanCandidate>>> for Answer {
    fn from(result: Result<Option<PlanCandidate>>) -> Self {
        match result {
            Ok(candidate) => Self { candidate, failures: Vec::new() },
            Err(error) => Self { candidate: None, failures: vec![error] },
        }
    }
}

/// A search in the store.
fn search(
    place: &'static str,
    look: impl Future<Output = Result<Option<PlanCandidate>>> + Send + 'static,
) -> Search {
    Search { place, answer: Box::pin(async move { look.await.into() }) }
}

/// A search on a thread that may block, once the disk is open.
fn on_open(
    place: &'static str,
    query: &Arc<PlanQuery>,
    look: impl FnOnce(&PlanQuery, &OpenedDisk) -> Answer + Send + 'static,
) -> Search {
    let query = Arc::clone(query);
    let answer = async move {
        let Some(opened) = query.opened().await else { return Answer::default() };
        broken_off(tokio::task::spawn_blocking(move || look(&query, &opened)).await)
    };
    Search { place, answer: Box::pin(answer) }
}

fn broken_off(answer: std::result::Result<Answer, JoinError>) -> Answer {
    answer.unwrap_or_else(|e| Err(Error::invalid("looking for plans broke off").caused_by(e)).into())
}

/// The plan that was published with the image, or with the one that it was made from. Groups of starts with the
/// entrypoint come first.
async fn artifact(query: Arc<PlanQuery>, entrypoint: String) -> Result<Option<PlanCandidate>> {
    let found = plan_artifact::find_known(&*query.store, &query.digest, &query.manifest).await?;
    let Some(found) = found else { return Ok(None) };
    let about = |e: Error| e.about(format!("artifact {}", found.digest));
    let all = PlanFile::open(&found.bytes[..]).and_then(|file| file.read_all()).map_err(about)?;
    // A plan that was handed down with the disk has the name of the image before.
    let same = found.about.disk_of.iter().copied();
    let of_image: Vec<_> =
        [query.image(), query.digest].into_iter().chain(same).map(|of| of.to_string()).collect();
    let (_, plans) = all
        .sole()
        .filter(|(key, _)| of_image.contains(&key.image))
        .ok_or_else(|| about(Error::invalid("has the plans of another image, or of several")))?;
    let Some(opened) = query.opened().await else { return Ok(None) };
    let why = why(&plans);
    let plans = Arc::unwrap_or_clone(plans).beginning_with(&entrypoint);
    let plans = in_place(plans, &query, &opened);
    Ok(Some(PlanCandidate { origin: Origin::Artifact, plans: Arc::new(plans), why }))
}

/// The trace that the image carries for `OverlayBD`'s prefetcher.
async fn trace_layer(query: Arc<PlanQuery>) -> Result<Option<PlanCandidate>> {
    let Some(trace) = acceleration::trace_of(&*query.store, &query.manifest).await? else {
        return Ok(None);
    };
    let Some(opened) = query.opened().await else { return Ok(None) };
    let why = "the trace in the image".to_owned();
    Ok(listed(Origin::TraceLayer, why, &items_of(&trace, &opened)?))
}

/// The plan from a trace file of `OverlayBD` for the disk.
fn trace_file(file: &Path, opened: &OpenedDisk) -> Result<Option<PlanCandidate>> {
    let about = |e: Error| e.about(file.display());
    let items = read_trace(file).and_then(|trace| items_of(&trace, opened)).map_err(about)?;
    let why = format!("the trace {}", file.display());
    Ok(listed(Origin::Given, why, &items))
}

/// Reads and checks a trace file of `OverlayBD`'s prefetcher, and returns its bytes.
///
/// # Errors
/// The error of reading the file; an error if it is longer than 64 MiB or not such a trace.
pub fn read_trace(file: &Path) -> Result<Vec<u8>> {
    let cannot = |e| Error::io("cannot be read", e);
    let mut trace = Vec::new();
    fs::File::open(file).and_then(|file| file.take(TRACE_MAX + 1).read_to_end(&mut trace)).map_err(cannot)?;
    overlaybd_trace::parse(&trace).map(|_| trace)
}

fn items_of(trace: &[u8], opened: &OpenedDisk) -> Result<Vec<PlanItem>> {
    let records = overlaybd_trace::parse(trace)?;
    Ok(overlaybd_trace::plan(&records, &layer_map::extents(&opened.stack), opened.stack.size()))
}

/// The order of the blocks in the image's boot layer.
fn boot_layer(query: &PlanQuery, opened: &OpenedDisk) -> Option<PlanCandidate> {
    let why = "the order of the image's boot layer".to_owned();
    listed(Origin::BootLayer, why, &boot_order(&opened.stack, &query.manifest))
}

/// The plans in the order of their blocks in the image.
fn in_place(plans: ImagePlans, query: &PlanQuery, opened: &OpenedDisk) -> ImagePlans {
    let order = boot_order(&opened.stack, &query.manifest);
    if order.is_empty() { plans } else { laid_out(plans, &order) }
}

fn listed(origin: Origin, why: String, items: &[PlanItem]) -> Option<PlanCandidate> {
    (!items.is_empty()).then(|| PlanCandidate { origin, plans: Arc::new(of_items(items)), why })
}

fn traces(plans: &ImagePlans) -> u64 {
    plans.groups.iter().fold(0, |sum, group| sum.saturating_add(group.traces))
}

/// The source of plans, for people.
fn why(plans: &ImagePlans) -> String {
    let boots = count(traces(plans), "boot");
    match plans.reason {
        ChoiceReason::Trained => format!("{boots} of this image"),
        ChoiceReason::Layers { known, all } => format!("{boots} of images with {known} of its {all} layers"),
        ChoiceReason::Image => format!("{boots} of this image on disks of other sizes"),
        ChoiceReason::FamilyUserMeta => {
            format!("{boots} of images of the same family, user and configuration")
        }
        ChoiceReason::FamilyUser => format!("{boots} of images of the same family and user"),
        ChoiceReason::FamilyMeta => format!("{boots} of images of the same family and configuration"),
        ChoiceReason::Family => format!("{boots} of images of the same family"),
        ChoiceReason::None => "nothing".to_owned(),
    }
}

/// Files of plans on this host.
struct Files {
    path: PathBuf,
    /// `true` if it must be there.
    named: bool,
    /// `true` if it must have a plan.
    given: bool,
    metadata: Metadata,
    /// The entrypoint whose groups come first.
    entrypoint: String,
}

impl Files {
    fn answer(&self, query: &PlanQuery, opened: &OpenedDisk) -> Answer {
        let paths = match self.paths() {
            Ok(paths) if paths.is_empty() => return Answer::default(),
            Ok(paths) => paths,
            Err(error) => return Err(error).into(),
        };
        let key = RecordedImage { image: query.image().to_string(), size: opened.size };
        let mut failures = Vec::new();
        let map = layer_map::of_disk(&opened.stack, &query.manifest);
        let map = map.map_err(|error| failures.push(error)).ok();
        let mut best: Option<(Rank, ImagePlans)> = None;
        for path in &paths {
            let looked = FileSource::open(path).and_then(PlanFile::open);
            let chosen = looked.and_then(|file| file.choose_layered(&key, &self.metadata, map.as_ref()));
            match chosen {
                Ok(plans) if plans.groups.is_empty() => {}
                Ok(plans) => {
                    let rank = rank(&plans);
                    if best.as_ref().is_none_or(|(before, _)| rank < *before) {
                        best = Some((rank, plans));
                    }
                }
                Err(error) => failures.push(error.about(path.display())),
            }
        }
        let candidate = best.map(|(_, plans)| {
            let origin = match plans.reason {
                _ if self.given => Origin::Given,
                ChoiceReason::Trained => Origin::File,
                _ => Origin::ZeroShot,
            };
            let why = why(&plans);
            let plans = plans.beginning_with(&self.entrypoint);
            PlanCandidate { origin, plans: Arc::new(in_place(plans, query, opened)), why }
        });
        if candidate.is_none() && failures.is_empty() && self.given {
            failures.push(Error::invalid("has no plan for this image").about(self.path.display()));
        }
        Answer { candidate, failures }
    }

    /// The paths of the files, by name.
    fn paths(&self) -> Result<Vec<PathBuf>> {
        let about = |e| Error::io("cannot be read", e).about(self.path.display());
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Ok(vec![self.path.clone()]),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !self.named => return Ok(Vec::new()),
            Err(e) => return Err(about(e)),
        }
        let mut paths = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(about)? {
            let path = entry.map_err(about)?.path();
            // A file that is being written has a name with a leading point.
            let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if !is_hidden && path.is_file() {
                paths.push(path);
            }
        }
        paths.sort();
        paths.truncate(FILES_MAX);
        Ok(paths)
    }
}

/// The rank of plans, the best first: by the distance of their boots from the image, then by their number.
type Rank = (u32, Reverse<u64>);

fn rank(plans: &ImagePlans) -> Rank {
    let distance = match plans.reason {
        ChoiceReason::Trained => 0,
        ChoiceReason::Image => 1,
        ChoiceReason::Layers { known, all } => 2 + all.saturating_sub(known).min(1),
        ChoiceReason::FamilyUserMeta => 4,
        ChoiceReason::FamilyUser => 5,
        ChoiceReason::FamilyMeta => 6,
        ChoiceReason::Family => 7,
        ChoiceReason::None => 8,
    };
    (distance, Reverse(traces(plans)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn nothing_at(place: &'static str) -> PlanFinding {
        PlanFinding { place, candidate: None, failures: Vec::new() }
    }

    #[tokio::test]
    async fn searches_end_when_the_disk_is_gone() {
        let (held, ended) = oneshot::channel::<()>();
        let mut searches = JoinSet::new();
        searches.spawn(async { nothing_at("here") });
        searches.spawn(async move {
            let _held = held;
            std::future::pending().await
        });
        let (findings, mut receiver) = mpsc::channel(FINDINGS_MAX);
        let passing = tokio::spawn(pass_on(searches, findings));
        assert_eq!(receiver.recv().await.unwrap().place, "here");
        drop(receiver);
        passing.await.unwrap();
        assert!(ended.await.is_err(), "the search without an answer was dropped");
    }

    #[tokio::test]
    async fn a_search_that_breaks_off_is_a_failure_and_the_others_go_on() {
        let mut searches = JoinSet::new();
        searches.spawn(std::future::pending()).abort();
        searches.spawn(async { nothing_at("here") });
        let (findings, mut receiver) = mpsc::channel(FINDINGS_MAX);
        tokio::spawn(pass_on(searches, findings));
        let mut found = Vec::new();
        while let Some(finding) = receiver.recv().await {
            found.push((finding.place, finding.failures.len()));
        }
        found.sort_unstable();
        assert_eq!(found, [("a place to look for plans", 1), ("here", 0)]);
    }
}
