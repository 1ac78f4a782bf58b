//! The whole against a plain array of pages, on a flash of one number a page.

mod closed;
mod cost;
mod figures;
mod model;
mod toy;
