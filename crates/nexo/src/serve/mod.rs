//! `nexo serve`: a broker and all its ways in, from reading the settings to the last sync.

mod cluster;
mod config;
mod descriptors;
mod listen;
mod logging;
mod run;
mod tls;

pub(crate) use cluster::recover;
pub(crate) use run::ServeArgs;
