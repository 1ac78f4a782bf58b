//! The whole against a plain array of pages, on a flash of one number a page.

mod cost;
mod figures;
mod model;
mod toy;
