//! A disk of an agent in words.

use headstart_block::ByteSize;
use headstart_block::words::count;
use serde_json::Value;
use std::fmt;

/// A disk in words.
pub(super) struct DiskLine<'a>(pub(super) &'a Value);

impl fmt::Display for DiskLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        write!(f, "{}: {}", text(&self.0["name"]), text(&self.0["state"]))?;
        match self.0["report"]["clients"].as_u64() {
            Some(clients) if clients > 0 && self.0["state"] == "detached" => {
                let were = if clients == 1 { "was" } else { "were" };
                write!(f, ", while {} {were} connected", count(clients, "client"))?;
            }
            _ => {}
        }
        if let Some(pid) = self.0["pid"].as_u64() {
            write!(f, ", process {pid}")?;
        }
        match self.0["restarts"].as_u64() {
            Some(restarts) if restarts > 0 => write!(f, ", started again {}", count(restarts, "time"))?,
            _ => {}
        }
        if let Some(error) = self.0["error"].as_str() {
            write!(f, ", {error}")?;
        }
        let ready = &self.0["ready"];
        for image in self.0["images"].as_array().into_iter().flatten() {
            let mut served = ready["disks"].as_array().into_iter().flatten();
            let is_it = |disk: &&Value| disk["digest"] == image["digest"] && disk["name"] == image["name"];
            match served.find(is_it).filter(|disk| disk["kept_in"].is_string()) {
                Some(kept) => {
                    let (name, dir) = (text(&kept["image"]), text(&kept["kept_in"]));
                    write!(f, "\n  {name} is {}, kept in {dir}", text(&image["digest"]))?;
                }
                None => match &self.0["holder"]["image"] {
                    Value::String(name) => {
                        let holder = text(&self.0["holder"]["program"]);
                        write!(f, "\n  {name} is {}, for {holder}", text(&image["digest"]))?;
                    }
                    _ => write!(f, "\n  {} is {}", text(&image["image"]), text(&image["digest"]))?,
                },
            }
        }
        for warning in ready["warnings"].as_array().into_iter().flatten() {
            write!(f, "\n  warning: {}", text(warning))?;
        }
        for space in self.0["space"].as_array().into_iter().flatten() {
            let bytes = |name: &str| ByteSize(space[name].as_u64().unwrap_or(0));
            write!(f, "\n  {} written, {} garbage", bytes("live_bytes"), bytes("garbage_bytes"))?;
            if space["waiting_writes"].as_u64() > Some(0) {
                write!(f, ", writes wait until it is collected")?;
            }
        }
        let ways = ready["ways"].as_array().map(Vec::as_slice).unwrap_or_default();
        ways.iter().try_for_each(|way| write!(f, "\n  {}", text(&way["uri"])))
    }
}
