//! The rules between arguments of `headstart-lab simulate disk` that clap cannot express: none does nothing.

use super::arguments::{Disk, MissName, ModelName, Part, PolicyName, PreloadName};
use headstart_block::{Error, Result};
use headstart_command_line::training::ObjectiveName;
use std::collections::BTreeSet;

/// The remedy where there is nothing to learn from.
const LEARN: &str = "give --train DIR or --split 0.8";

impl Disk {
    /// Checks that the options go together.
    pub(super) fn check(&self) -> Result<()> {
        self.check_model()?;
        self.check_learning()?;
        self.check_policies()?;
        self.check_parts()?;
        self.check_images()
    }

    /// Options that only the real model has.
    fn check_model(&self) -> Result<()> {
        if self.model == ModelName::Real {
            return Ok(());
        }
        // Plans for a guest that waits are made with these.
        let is_for_plans = self.objective == Some(ObjectiveName::Boot);
        let options = [
            ("--round-trip", self.round_trip.is_some() && !is_for_plans),
            ("--misses", self.misses.is_some() && !is_for_plans),
            ("--preloads", self.preloads.is_some() && !is_for_plans),
            ("--store-latency", self.store_latency.is_some()),
            ("--store-fails", self.store_fails.is_some()),
            ("--store-away", !self.store_away.is_empty()),
            ("--image", !self.image.is_empty()),
            ("--local-read", !self.local_read.is_zero()),
            ("--without hot-slices", self.without.contains(&Part::HotSlices)),
            ("--without critical-range", self.without.contains(&Part::CriticalRange)),
        ];
        match options.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Error::invalid(format!("{option} does nothing in the paper's model"))
                .remedy("give --model real")),
            None => Ok(()),
        }
    }

    /// Options and policies that need boots to learn from.
    fn check_learning(&self) -> Result<()> {
        if self.train.is_some() || self.split.is_some() {
            return Ok(());
        }
        if self.min_traces > 0 || self.hide_own {
            let option = if self.hide_own { "--hide-own" } else { "--min-traces" };
            let cause = format!("{option} speaks of boots to learn from, and there are none");
            return Err(Error::invalid(cause).remedy(match self.plans {
                Some(_) => format!("leave it out, or {LEARN} in the place of --plans"),
                None => LEARN.to_owned(),
            }));
        }
        let learned = |policy: &&PolicyName| matches!(policy, PolicyName::Learned(_));
        match self.policies.iter().find(learned) {
            Some(policy) if self.plans.is_none() => {
                let others = PolicyName::possible([]).into_iter().map(PolicyName::name).collect::<Vec<_>>();
                let name = policy.name();
                let cause =
                    format!("--policies: `{name}` learns from boots, and there are none to learn from");
                let others = others.join(", ");
                let remedy =
                    format!("give --train DIR, --split 0.8 or --plans FILE; or name some of {others}");
                Err(Error::invalid(cause).remedy(remedy))
            }
            _ => Ok(()),
        }
    }

    /// Options of policies that are not simulated.
    fn check_policies(&self) -> Result<()> {
        let has = |is_it: fn(&PolicyName) -> bool| self.policies.iter().any(is_it);
        let is_all = has(|policy| *policy == PolicyName::All);
        let learns = is_all || has(|policy| matches!(policy, PolicyName::Learned(_)));
        let plans = is_all || has(|policy| *policy == PolicyName::Oracle) || learns && self.plans.is_none();
        let refused = |option: &str, needs: &str, such_as: &str| {
            Err(Error::invalid(format!("{option} does nothing without a policy that {needs}"))
                .remedy(format!("name one with --policies, such as {such_as}")))
        };
        if self.hide_own && !learns {
            return refused("--hide-own", "learns", "thinkahead");
        }
        if !self.without.is_empty() && !learns {
            return refused("--without", "learns", "thinkahead");
        }
        if self.objective.is_some() && !plans {
            return refused("--objective", "makes plans", "thinkahead or oracle");
        }
        Ok(())
    }

    /// Parts that are left out anyway, or that are no part.
    fn check_parts(&self) -> Result<()> {
        if self.plans.is_some() && self.without.contains(&Part::Preprocessing) {
            return Err(Error::invalid(
                "--without preprocessing is a matter of training, and --plans are trained",
            )
            .remedy(format!("{LEARN} instead of --plans")));
        }
        let blocks = [
            (Part::HotSlices, self.preloads == Some(PreloadName::Blocks), "--preloads blocks"),
            (Part::CriticalRange, self.misses == Some(MissName::Blocks), "--misses blocks"),
        ];
        let is_out = |(part, given, _): &&(Part, bool, &str)| *given && self.without.contains(part);
        match blocks.iter().find(is_out) {
            Some((part, _, option)) => {
                Err(Error::invalid(format!("--without {part} does nothing with {option}"))
                    .remedy("give one of them"))
            }
            None => Ok(()),
        }
    }

    /// Images that stand for the same boots.
    fn check_images(&self) -> Result<()> {
        if self.image.len() > 1 && self.image.iter().any(|image| image.name.is_empty()) {
            return Err(Error::invalid("--image without a name stands for all boots, and there are several")
                .remedy("write NAME=IMAGE for each, as `headstart-lab trace stats` lists them"));
        }
        let mut names = BTreeSet::new();
        match self.image.iter().find(|image| !names.insert(&image.name)) {
            Some(image) => {
                Err(Error::invalid(format!("--image has two images for boots of `{}`", image.name))
                    .remedy("give each name once"))
            }
            None => Ok(()),
        }
    }
}
