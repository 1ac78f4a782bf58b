//! Digests of TurboOCI layers that never change, as those of native layers (`layer::tests::digests`). The metadata and
//! the index depend on the bytes of the container's layer as stored, so these are part of the test.

use super::*;
use crate::options::WRITER_VERSION;
use crate::raw_tar::RawTar;

/// The digests of the container's layers as stored. Other ones mean another gzip of this test, and nothing else.
const SOURCES: [&str; 3] = [
    "sha256:fab145632843fe5c4a33cdf6c91a4aa873591644ad31d64914dbd587f8072a64",
    "sha256:d9c47dbc359649f87cd9ed13d3b4be076dac7e7605fb9ecc4592a75700ae97a2",
    "sha256:37ca3497d75a09eaa482cb730632e877cfe4b31620452435b30285545a224c26",
];
/// The digests of the TurboOCI layers, by the encoder of their metadata.
const LAYERS_OF_LZ4_1_10_0: [&str; 3] = [
    "sha256:164463ff894bb85dd6418329b083a927f9b10383f8c57a0e4e866564471ba19f",
    "sha256:24be9b2d2c108c12b9fad8bf0b94cf21ffb77fb9f065ce98a7ea638079d708f9",
    "sha256:d031e58126ad274be34f5a705cc84fe8475b9748d5f2272ef1981c31ee4b36d5",
];
const LAYERS_OF_ZSTD_1_5_7: [&str; 3] = [
    "sha256:0aca5b46478cb7c7a75a1c52241aa7da19c82cbe97e45b7f2bbf5708cc50db1f",
    "sha256:32859a96b82e1c454ef57470ed83c12d8e5687bbed7508afff9bb6cb8d0f3f02",
    "sha256:1a1869d152de74fe5330e8ab173c5c9948716c1dced463f884dc48600554f922",
];

/// The layers as stored, and their tars.
fn sources() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut base = RawTar::default().dir("usr").dir("etc").file("usr/large", &noise(1, 5_000_000));
    for number in 0..300 {
        base = base.file(&format!("usr/file-{number:04}"), &noise(number, to_usize(number * 13 % 5000)));
    }
    let base = base
        .link("usr/large", "usr/large-too")
        .symlink("large", "usr/alias")
        .file("etc/gone", b"gone")
        .done();
    let changes = RawTar::default()
        .file("etc/.wh.gone", b"")
        .file("usr/large", &noise(2, 1_500_000))
        .file("usr/file-0007", &noise(7, 91))
        .done();
    let last = RawTar::default().file("app/config.json", b"{}").done();
    in_gzip(&[base, changes, last])
}

#[test]
fn metadata_and_indexes_have_the_digests_that_they_always_had() {
    assert_eq!(WRITER_VERSION, 1, "the constants are those of version 1");
    let sources = sources();
    let digests: Vec<_> = sources.iter().map(|(stored, _)| Digest::of(stored).to_string()).collect();
    assert_eq!(digests, SOURCES);
    for (codec, expected) in [(Codec::Lz4, LAYERS_OF_LZ4_1_10_0), (Codec::Zstd, LAYERS_OF_ZSTD_1_5_7)] {
        for threads in [1, 2, 8] {
            let dir = tempfile::tempdir().unwrap();
            let packing = Packing::ZFile(ZFileOptions { codec, ..ZFileOptions::default() });
            let options = ConvertOptions { packing, ..options(ConvertMode::Turbo, threads) };
            let (layers, _) = convert_all(&staging_in(dir.path()), &sources, &options);
            let digests: Vec<_> = layers.iter().map(|layer| layer.layer.blob.digest.to_string()).collect();
            assert_eq!(digests, expected, "{codec:?}, {threads} threads: other bytes");
        }
    }
}
