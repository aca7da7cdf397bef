//! Definitions to a file and from one.

use std::fs;
use std::io::{self, Read, Write};

use super::stop::{DATA, Stop, UNAVAILABLE, USAGE};
use super::{ApiPath, Ctl};

pub(super) async fn export(ctl: &mut Ctl) -> Result<(), Stop> {
    only_json(ctl)?;
    let path = ctl.word(0).to_owned();
    if path == "-" {
        let definitions = ctl.api.get(&ApiPath::of(&["definitions"])).await?;
        return ctl.line(definitions);
    }
    ctl.say(format_args!("Exporting definitions in JSON to a file at \"{path}\" ..."))?;
    let definitions = ctl.api.get(&ApiPath::of(&["definitions"])).await?;
    let failed = |error| Stop::error(UNAVAILABLE, format_args!("cannot write {path}: {error}"));
    // Passwords are in it, if only their hashes: for nobody else to read.
    let mut file = private_file(&path).map_err(failed)?;
    file.write_all(definitions.to_string().as_bytes()).map_err(failed)
}

fn private_file(path: &str) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

pub(super) async fn import(ctl: &mut Ctl) -> Result<(), Stop> {
    only_json(ctl)?;
    let path = ctl.given.words.first().cloned().unwrap_or_else(|| "-".to_owned());
    let mut text = String::new();
    if path == "-" {
        io::stdin().read_to_string(&mut text)?;
        ctl.say("Importing definitions in JSON from standard input ...")?;
    } else {
        match fs::read_to_string(&path) {
            Ok(read) => text = read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ctl.wrong(DATA, format!("Bad argument: File {path} does not exist")));
            }
            Err(error) => return Err(ctl.wrong(DATA, format!("Bad argument: cannot read {path}: {error}"))),
        }
        ctl.say(format_args!("Importing definitions in JSON from a file at \"{path}\" ..."))?;
    }
    let definitions = serde_json::from_str(&text)
        .map_err(|error| Stop::error(DATA, format_args!("these are no definitions: {error}")))?;
    ctl.api.post(&ApiPath::of(&["definitions"]), &definitions).await?;
    ctl.say("Successfully imported the definitions.")
}

fn only_json(ctl: &Ctl) -> Result<(), Stop> {
    match ctl.given.value("format") {
        None | Some("json") => Ok(()),
        Some(_) => Err(ctl.wrong(USAGE, "definitions are in JSON here")),
    }
}
