//! The program as its users run it: every test starts the binary, with files, signals and full disks.
//!
//! | module | subject |
//! |---|---|
//! | [`import`], [`disk_formats`], [`backing_files`] | disks of every kind and size become images |
//! | [`convert`], [`forms`], [`erofs_images`] | container images become images of disks, and these others |
//! | [`export`] | images become disks again |
//! | [`layers`], [`commit`] | images on top of images; flatten, diff, inspect |
//! | [`optimize`] | the blocks that boots read are stored first |
//! | [`copies`] | push, pull, copy, list, with servers of other projects |
//! | [`verify`], [`prune`] | damage is found and named; needed blobs stay |
//! | [`golden`], [`zfile`] | the reference's blobs give their bytes; single files |
//! | [`full_disk`], [`signals`], [`large`] | no space, Ctrl-C, kill -9, terabytes |
//! | [`cache`] | the cached parts of images on this host |
//! | [`trace`] | the recordings of disks, and their use |
//! | [`learn`] | recorded boots become plans |
//! | [`publish`] | plans are published with their images and travel with them; traces for other readers |
//! | [`doctor`] | the features that work on this host |
//! | [`help`], [`hostile`] | the command line itself; garbage wherever a file is read |
//!
//! [`scene`] is the place of a test: a directory, the program in it, and its output; [`disk`] makes disks, [`tools`]
//! are programs of other projects (a test that lacks one prints that on standard error and passes), and [`golden_set`]
//! lays out the reference's blobs.

#![allow(clippy::cast_possible_truncation, clippy::panic, clippy::unwrap_used, reason = "tests")]

mod backing_files;
mod cache;
mod commit;
mod convert;
mod convert_memory;
mod copies;
mod disk_formats;
mod doctor;
mod erofs_images;
mod export;
mod forms;
mod full_disk;
mod golden;
mod golden_set;
mod help;
mod hostile;
mod import;
mod large;
mod layers;
mod learn;
mod optimize;
mod prune;
mod publish;
mod signals;
mod tools;
mod trace;
mod verify;
mod zfile;

use headstart_testkit::{disk, scene};
