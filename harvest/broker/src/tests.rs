use super::*;
use crate::gssd::Grain;
use headstart_flash::custody::Custody;
use headstart_flash::device::FlashBlock;

mod rules;
mod world;

const MINUTE: Duration = Duration::from_secs(60);

fn minutes(minutes: u64) -> Time {
    Time(0) + MINUTE * u32::try_from(minutes).unwrap()
}

/// A broker whose gSSDs are made of channels and of 10 blocks, and whose actions are done at once.
struct Host {
    broker: Broker,
    now: Time,
    /// The actions that were done, except journalling.
    done: Vec<BrokerAction>,
    /// `true` if data can be moved elsewhere.
    fits: bool,
    /// `true` if a requested move is done.
    moves: bool,
    /// The most blocks that are carved of those requested.
    carves: u32,
}

impl Host {
    fn new(mut settings: BrokerSettings) -> Self {
        settings.grain = Grain { capacity: 10, ..Grain::default() };
        Self {
            broker: Broker::new(settings),
            now: minutes(0),
            done: Vec::new(),
            fits: true,
            moves: true,
            carves: u32::MAX,
        }
    }

    fn create(&mut self, id: u32, kind: VssdKind, bandwidth: u16, capacity: u32) {
        self.event(BrokerEvent::Created {
            vssd: VssdId(id),
            kind,
            bandwidth,
            capacity,
            channels: Vec::new(),
        });
    }

    fn forecast(&mut self, id: u32, bandwidth: u16, capacity: u32, lasts: u64) {
        let lasts = MINUTE * u32::try_from(lasts).unwrap();
        self.event(BrokerEvent::Forecast { vssd: VssdId(id), bandwidth, capacity, lasts });
    }

    fn request(&mut self, borrower: u32, bandwidth: u16, capacity: u32, lasts: u64) -> BrokerAnswer {
        self.request_as(borrower, bandwidth, capacity, lasts, false, false)
    }

    fn request_as(
        &mut self,
        borrower: u32,
        bandwidth: u16,
        capacity: u32,
        lasts: u64,
        partial: bool,
        grow: bool,
    ) -> BrokerAnswer {
        let lasts = MINUTE * u32::try_from(lasts).unwrap();
        let (request, vm, borrower) = (BrokerRequestId(1), "job".to_owned(), VssdId(borrower));
        self.event(BrokerEvent::Request(BrokerRequest {
            request,
            vm,
            borrower,
            bandwidth,
            capacity,
            lasts,
            partial,
            grow,
        }));
        let answers = self.done.iter().rev().filter_map(|action| match action {
            BrokerAction::Answer { answer, .. } => Some(answer.clone()),
            _ => None,
        });
        answers.into_iter().next().expect("an answer")
    }

    fn wait(&mut self, until: u64) {
        while let Some(next) = self.broker.next().filter(|next| *next <= minutes(until)) {
            self.now = self.now.max(next);
            self.event(BrokerEvent::Tick);
        }
        self.now = minutes(until);
    }

    fn event(&mut self, event: BrokerEvent) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            self.broker.on_event(self.now, event, &mut actions);
            for action in actions {
                match action.clone() {
                    BrokerAction::Journal(_) => continue,
                    BrokerAction::Carve { gssd, bandwidth, capacity, .. } => {
                        let capacity = capacity.min(self.carves);
                        events.push(BrokerEvent::Carved { gssd, bandwidth, capacity, blocks: Vec::new() });
                    }
                    BrokerAction::Erase { gssd } => {
                        events.push(BrokerEvent::Erased { gssd, bad: Vec::new() });
                    }
                    BrokerAction::Evacuate { .. } if !self.moves => {}
                    BrokerAction::Evacuate { gssd, .. } if self.fits => {
                        events.push(BrokerEvent::Evacuated { gssd });
                    }
                    BrokerAction::Evacuate { gssd, .. } => {
                        events.push(BrokerEvent::EvacuationFailed { gssd, cause: "no space".to_owned() });
                    }
                    BrokerAction::Detach { gssd, .. } => events.push(BrokerEvent::Detached { gssd }),
                    BrokerAction::Wipe { vssd } => events.push(BrokerEvent::Wiped { vssd, bad: Vec::new() }),
                    _ => {}
                }
                self.done.push(action);
            }
        }
    }

    fn reports(&self) -> Vec<String> {
        let reports = self.done.iter().filter_map(|action| match action {
            BrokerAction::Report(report) => Some(report.to_string()),
            _ => None,
        });
        reports.collect()
    }
}
