//! Messages between disks and agents of earlier versions: a disk outlives the agent that started it, so the present
//! agent and the present disk must read both directions.

use super::wire::{FromAgent, FromDisk, UNDERSTOOD, receive};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

fn recorded(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

fn all<T: serde::de::DeserializeOwned>(path: &Path) -> Vec<T> {
    let bytes = recorded(path);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (mut rest, mut words) = (bytes.as_slice(), Vec::new());
        while let Some(word) = receive(&mut rest).await.unwrap() {
            words.push(word);
        }
        words
    })
}

#[test]
fn words_that_were_recorded_are_understood() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let versions: Vec<PathBuf> = fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).collect();
    for version in versions.iter().filter(|path| path.is_dir()) {
        let words: Vec<FromDisk> = all(&version.join("wire/local-from-disk.gz"));
        let hello = matches!(words[0], FromDisk::Hello { version, .. } if version >= UNDERSTOOD);
        assert!(hello, "{:?}", words[0]);
        let wants = words.iter().filter(|word| matches!(word, FromDisk::Want { .. })).count();
        assert!(wants > 0 && words.iter().any(|word| matches!(word, FromDisk::Join { .. })), "{words:?}");
        let words: Vec<FromAgent> = all(&version.join("wire/local-from-agent.gz"));
        assert!(matches!(words[0], FromAgent::Welcome), "{words:?}");
        assert!(words.iter().any(|word| matches!(word, FromAgent::Answer { .. })), "{words:?}");
    }
}
