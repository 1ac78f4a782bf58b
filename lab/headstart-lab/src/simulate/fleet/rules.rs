//! The rules between arguments of `headstart-lab simulate fleet` that clap cannot express: none does nothing.

use super::arguments::{Fleet, PatternName, PlanName, REGION, TOPOLOGY, Threshold, WarmName, WayName};
use headstart_block::{Error, Result};
use headstart_swarm::Topology;

impl Fleet {
    /// Checks that the options go together.
    pub(in crate::simulate) fn check(&self) -> Result<()> {
        self.check_numbers()?;
        self.check_patterns()?;
        self.check_swarm()
    }

    /// Numbers of hosts, images and roots.
    fn check_numbers(&self) -> Result<()> {
        let boots = self.patterns.contains(&PatternName::Boots);
        if boots != self.traces.is_some() {
            return Err(Error::invalid("boots are replayed from traces, and traces replayed as boots")
                .remedy("give both --patterns boots and --traces TRACES, or neither"));
        }
        let several = self.boots_of.len() > 1;
        if several && (self.image.is_some() || self.hints || self.plan != PlanName::None) {
            return Err(Error::invalid("an image's index, plan and hints are of one image")
                .remedy("give one name with --boots-of, or leave out --image, --plan and --hints"));
        }
        if self.push > 0 && (self.topology != Topology::Roots || self.roots == 0) {
            return Err(Error::invalid("only roots send ahead, to agents of theirs")
                .remedy("give --topology roots and --roots as well as --push"));
        }
        if self.warm == WarmName::Roots && self.roots == 0 {
            return Err(Error::invalid("--warm roots does nothing without roots")
                .remedy("give --roots N as well, or leave it out"));
        }
        if self.pinned > self.hosts {
            return Err(Error::invalid(format!("{} copies on {} hosts", self.pinned, self.hosts))
                .remedy("give more --hosts, or a smaller number with --pinned"));
        }
        if self.roots_apart && self.roots >= self.hosts {
            return Err(Error::invalid("all hosts are roots: none is left for disks")
                .remedy("give more --hosts than --roots, or leave out --roots-apart"));
        }
        let bad = [self.corrupt, self.liars, self.slow, self.endless, self.promisers, self.mutes];
        let bad = bad.into_iter().fold(0, u32::saturating_add);
        if self.roots.max(bad) > self.hosts {
            return Err(Error::invalid(format!("there are only {} hosts", self.hosts))
                .remedy("give more --hosts, or fewer that are roots or do harm"));
        }
        Ok(())
    }

    /// Options of patterns that are not simulated.
    fn check_patterns(&self) -> Result<()> {
        let only_boots = self.patterns.iter().all(|pattern| *pattern == PatternName::Boots);
        if only_boots && self.region != REGION {
            return Err(Error::invalid("--region does nothing where only boots are replayed")
                .remedy("leave it out, or name another pattern with --patterns, such as sync-same"));
        }
        Ok(())
    }

    /// Options of ways that are not simulated.
    fn check_swarm(&self) -> Result<()> {
        let has = |way| self.ways.contains(&way);
        let refused = |options: &[(&str, bool)], remedy: &str| {
            let Some((option, _)) = options.iter().find(|(_, given)| *given) else { return Ok(()) };
            Err(Error::invalid(format!("{option} does nothing in the ways of --ways"))
                .remedy(format!("add {remedy}, or leave it out")))
        };
        if has(WayName::Swarm) {
            return Ok(());
        }
        if !has(WayName::Independent) {
            refused(&[("--hints", self.hints)], "--ways independent or --ways swarm")?;
        }
        if !has(WayName::Tree) {
            let between = [
                ("--fabric", self.fabric.is_some()),
                ("--corrupt", self.corrupt > 0),
                ("--liars", self.liars > 0),
                ("--endless", self.endless > 0),
                ("--promisers", self.promisers > 0),
                ("--mutes", self.mutes > 0),
            ];
            refused(&between, "--ways swarm")?;
        }
        let of_swarms = [
            ("--thresholds", self.thresholds != [Threshold::DEFAULT]),
            ("--topology", self.topology != TOPOLOGY),
            ("--roots", self.roots > 0 && !self.roots_apart),
            ("--no-homes", self.no_homes),
            ("--cell", self.cell > 0),
            ("--push", self.push > 0),
            ("--warm", self.warm != WarmName::None),
            ("--pinned", self.pinned > 0),
            ("--restart", !self.restart.is_empty()),
            ("--kill-roots", self.kill_roots.is_some()),
        ];
        refused(&of_swarms, "--ways swarm")
    }
}
