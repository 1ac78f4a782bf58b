//! `headstart disk watch`: the changes of an agent's disks, line by line.
//!
//! It begins with the present disks. If the agent goes away and another takes its place, as in an upgrade, it goes on
//! with that one; it makes up for missed events by starting again with all disks.

use super::disk_line::DiskLine;
use crate::ask::runtime;
use headstart_agentd::client::{AgentClient, DiskEvent};
use headstart_block::{Error, ErrorKind, Result};
use headstart_command_line::printable;
use headstart_command_line::report::Report;
use headstart_command_line::terminal::before_stop;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

/// The interval of attempts to reach an agent that went away.
const AGAIN: Duration = Duration::from_millis(500);

/// The events to report, and their form.
pub(super) struct Watch<'a> {
    /// The names of disks; all disks if empty.
    pub(super) names: &'a [String],
    pub(super) json: bool,
}

/// The cause of the end of a connection.
#[derive(Debug, PartialEq)]
enum Ended {
    /// The user stopped it, or the reader of the output is gone.
    Well,
    /// The connection has no more events.
    Lost,
}

impl Watch<'_> {
    /// Reports changes until it is stopped.
    ///
    /// # Errors
    /// If there is no agent at the start, or nothing can be written.
    pub(super) fn run(&self, agent: &AgentClient) -> Result<Box<dyn Report>> {
        let runtime = runtime()?;
        let mut reported = HashMap::new();
        let mut connected = false;
        loop {
            match runtime.block_on(before_stop(self.follow(agent, &mut reported, !connected))) {
                Some(Ok(Ended::Lost)) => connected = true,
                // An agent that was there comes back, and gives its new socket to other users only then.
                Some(Err(e))
                    if connected && matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Denied) => {}
                Some(Err(e)) => return Err(e),
                Some(Ok(Ended::Well)) | None => return Ok(Box::new(Silent)),
            }
            if runtime.block_on(before_stop(async { tokio::time::sleep(AGAIN).await })).is_none() {
                return Ok(Box::new(Silent));
            }
        }
    }

    /// Reports the present disks, and their changes, while the connection lasts.
    async fn follow(
        &self,
        agent: &AgentClient,
        reported: &mut HashMap<String, String>,
        is_first: bool,
    ) -> Result<Ended> {
        let mut events = agent.events().await?;
        // From here on no event is missed, so the present disks are the beginning.
        let disks = agent.list().await?;
        let disks = disks.as_array().map(Vec::as_slice).unwrap_or_default();
        // Disks that are not there any more have gone without an event.
        let is_there = |name: &String| disks.iter().any(|disk| disk["name"] == **name);
        for name in self.names.iter().filter(|name| is_first && !is_there(name)) {
            let name = name.escape_debug();
            tracing::warn!("the agent has no disk that is called `{name}`: it is reported once there is one");
        }
        let gone: Vec<String> = reported.keys().filter(|name| !is_there(name)).cloned().collect();
        let gone = gone.into_iter().map(|name| json!({ "name": name, "state": "detached" }));
        for disk in gone.collect::<Vec<_>>().iter().chain(disks) {
            if self.report(disk, reported)? == Ended::Lost {
                return Ok(Ended::Well);
            }
        }
        while let Some(DiskEvent::Disk(disk)) = events.next().await {
            if self.report(&disk, reported)? == Ended::Lost {
                return Ok(Ended::Well);
            }
        }
        // Events were missed, or the stream has ended.
        Ok(Ended::Lost)
    }

    /// Reports a disk if it has changed; `Lost` if the output has no reader any more.
    fn report(&self, disk: &Value, reported: &mut HashMap<String, String>) -> Result<Ended> {
        let name = disk["name"].as_str().unwrap_or_default();
        if !self.names.is_empty() && !self.names.iter().any(|known| known == name) {
            return Ok(Ended::Well);
        }
        let line = if self.json { disk.to_string() } else { printable::lines(&DiskLine(disk).to_string()) };
        if reported.get(name) == Some(&line) {
            return Ok(Ended::Well);
        }
        let is_over = matches!(disk["state"].as_str(), Some("detached" | "failed"));
        if is_over {
            reported.remove(name);
        } else {
            reported.insert(name.to_owned(), line.clone());
        }
        let mut out = std::io::stdout().lock();
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            Ok(()) => Ok(Ended::Well),
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(Ended::Lost),
            Err(e) => Err(Error::io("cannot write to standard output", e)),
        }
    }
}

/// The report of a command that has printed everything already.
struct Silent;

impl Report for Silent {
    fn print(&self, _: bool) -> ExitCode {
        ExitCode::SUCCESS
    }
}
