//! Tests of the configuration through its public face.

mod cases;
mod docs;
mod files;
mod fuzz;
mod maxtext;
mod models;
mod plan;
mod primus;
mod primus_keys;
mod ranks;
mod reports;
mod scaling;
mod support;
