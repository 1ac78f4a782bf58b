//! The generated part of the documentation: what a reader looks up is made of the place that has it.
//!
//! | module | content | made of |
//! |---|---|---|
//! | [`commands`] | a page for each command; man pages, completions | the definition of the command line |
//! | [`metrics`] | the tables of metrics | pages of metrics that the program served |
//! | [`rest`] | the HTTP interfaces | their OpenAPI documents |
//! | [`formats`] | formats on disk, messages between hosts | the heads of modules, the comments of an enum |
//! | [`json`] | the JSON that commands print, as schemas | the types that are printed |
//! | [`site`] | the source of the site: these pages beside the written ones | `docs/` |
//! | [`links`] | dead links in all of it | |
//! | `kind` | types of schemas in words | |
//! | [`source`] | items of Rust files with their comments | |
//! | [`markdown`] | text that has to survive as it is | |
//!
//! Documents and metrics are recorded by `scripts/make-fixtures`, which runs every daemon.

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
