//! The generated part of the documentation: reference pages, each generated from the code that defines its subject.
//!
//! | module | content | generated from |
//! |---|---|---|
//! | [`commands`] | a page for each command; man pages, completions | the definition of the command line |
//! | [`metrics`] | the tables of metrics | pages of metrics that the program served |
//! | [`rest`] | the HTTP interfaces | their OpenAPI documents |
//! | [`formats`] | formats on disk, messages between hosts | the comments of modules and enums |
//! | [`json`] | the JSON that commands print, as schemas | the types that are printed |
//! | [`site`] | the source of the site: the written pages and the generated ones | `docs/`, and the modules above |
//! | [`links`] | the check for dead links in the pages | |
//! | `kind` | the types of JSON schemas as words | |
//! | [`source`] | the comments in Rust files | |
//! | [`markdown`] | escaped text, tables and blocks of code in Markdown | |
//!
//! The OpenAPI documents and the pages of metrics are recorded by `scripts/make-fixtures`, which runs every daemon.

#![forbid(unsafe_code)]

pub mod commands;
pub mod formats;
pub mod json;
mod kind;
pub mod links;
pub mod markdown;
pub mod metrics;
pub mod rest;
pub mod site;
pub mod source;

/// A generated page, or another generated file, of the site.
pub struct SitePage {
    /// Path of the file relative to the source of the site, such as `reference/metrics.md`.
    pub path: String,
    /// Title of the page, which is also its first heading.
    pub title: String,
    /// Content of the file: Markdown with the title as first heading, or JSON.
    pub text: String,
}

impl SitePage {
    /// A page of `title` and what follows it.
    pub(crate) fn new(path: impl Into<String>, title: impl Into<String>, body: &str) -> Self {
        let title = title.into();
        let text = format!("# {}\n\n{}\n", markdown::escaped(&title), body.trim());
        Self { path: path.into(), title, text }
    }
}

/// The error of generating the reference; its message names the file or item that is wrong.
pub type GeneratorError = Box<dyn std::error::Error>;

/// The result of functions that generate the reference.
pub type Result<T> = std::result::Result<T, GeneratorError>;
