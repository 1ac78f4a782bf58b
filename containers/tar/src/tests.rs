mod damage;
mod formats;
mod limits;
mod sparse;
mod stream;
mod support;
