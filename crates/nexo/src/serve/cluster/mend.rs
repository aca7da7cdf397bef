//! A node whose data is damaged comes back as another, with what the others have.
//!
//! What it had acknowledged may be gone, so it must not vote with what is left. It asks the leader to count it no more and to let it in
//! under a new number; until the leader says yes, its data stays as it is. Then the data is set aside, and it joins like any new node.
//! Each step is written down before the next, so that a crash leaves a node which goes on from there.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use nexo_admin::ClusterRefused;
use nexo_peer::PeerSecurity;

use super::join::{Bootstrap, join, let_in, request_of};
use super::node::ClusterNode;
use super::node_file::{NodeFile, Stage};
use super::part::random_join;
use super::request::Answer;
use super::settings::ClusterSettings;

/// Where damaged data lies until it is damaged again, or somebody deletes it.
const SET_ASIDE: &str = "set-aside";
/// What stays where it is: what a node knows of itself, and what is not ours.
const STAYS: [&str; 4] = [SET_ASIDE, "cluster.json", "cluster.json.new", "lost+found"];
/// The pause between two questions.
const PAUSE: Duration = Duration::from_secs(1);

/// A node whose data was found to be damaged, as it is written down.
pub(super) fn damaged(node: &NodeFile) -> NodeFile {
    match (&node.stage, node.stage.membership()) {
        // It has a number for the data that comes already, or is in no cluster.
        (Stage::Damaged(_), _) | (_, None) => node.clone(),
        (_, Some(membership)) => NodeFile { join: random_join(), ..node.at(Stage::Damaged(membership)) },
    }
}

/// From there to a node that joins.
pub(super) async fn mend(
    mut node: NodeFile,
    settings: &ClusterSettings,
    security: &PeerSecurity,
    data_dir: &Path,
) -> anyhow::Result<NodeFile> {
    if matches!(node.stage, Stage::Damaged(_)) {
        node.write(data_dir)?;
        let mut at: Vec<String> = node.others.values().cloned().collect();
        at.extend(
            settings.join.iter().filter(|address| !node.others.values().any(|it| it == *address)).cloned(),
        );
        tracing::warn!(name = %node.name, "the data of this node is damaged: it asks to be let in as a new one");
        node = join(&node, &at, security, Bootstrap::Never)
            .await
            .context("the data of this node is damaged, and stays as it is")?;
        node.write(data_dir)?;
    }
    let Stage::Replaced(membership) = node.stage else { bail!("the node is not to be replaced") };
    set_aside(data_dir)
        .with_context(|| format!("the damaged data in '{}' cannot be set aside", data_dir.display()))?;
    let joining = node.at(Stage::Joining(membership));
    joining.write(data_dir)?;
    Ok(joining)
}

/// Moves the data away. What was set aside before is deleted: it was replaced long ago.
fn set_aside(data_dir: &Path) -> io::Result<()> {
    let aside = data_dir.join(SET_ASIDE);
    // As long as there is a `FORMAT`, nothing was moved yet: it goes first.
    if data_dir.join("FORMAT").exists() {
        match fs::remove_dir_all(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        fs::create_dir(&aside)?;
        fs::rename(data_dir.join("FORMAT"), aside.join("FORMAT"))?;
    }
    for entry in fs::read_dir(data_dir)? {
        let name = entry?.file_name();
        if !STAYS.iter().any(|stays| name == *stays) {
            fs::rename(data_dir.join(&name), aside.join(&name))?;
        }
    }
    if aside.exists() {
        fs::File::open(&aside)?.sync_all()?;
    }
    fs::File::open(data_dir)?.sync_all()
}

impl ClusterNode {
    /// Notes that damage was found while the node runs, so that no start goes on with that data.
    pub(super) fn note_damage(&self) {
        let damage = self.replication.watch_damage().borrow().clone();
        let mut file = self.file.lock();
        if damage.is_none() || !matches!(file.stage, Stage::Member(_)) {
            return;
        }
        let next = damaged(&file);
        match next.write(&self.data_dir) {
            Ok(()) => *file = next,
            Err(error) => tracing::error!("{error:#}"),
        }
    }

    /// If damage was found, asks until the others let this node in as another. It takes part meanwhile: they may need it for a
    /// majority.
    pub(super) async fn until_replaced(&self) {
        let mut damage = self.replication.watch_damage();
        if damage.wait_for(Option::is_some).await.is_err() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(PAUSE).await;
            self.note_damage();
            let file = self.file.lock().clone();
            if !matches!(file.stage, Stage::Damaged(_)) || self.is_leading() {
                continue;
            }
            let replaced = match self.ask_around(&request_of(&file)).await {
                Ok(answer @ Answer::Joined { .. }) => let_in(&file, answer),
                Ok(_) => continue,
                Err(ClusterRefused::Unavailable(reason)) => {
                    tracing::warn!(reason, "this node has damaged data and cannot be replaced yet");
                    continue;
                }
                Err(refused) => {
                    tracing::error!(%refused, "this node has damaged data and is not let in anew");
                    continue;
                }
            };
            let mut file = self.file.lock();
            match replaced.and_then(|replaced| replaced.write(&self.data_dir).map(|()| replaced)) {
                Ok(replaced) => {
                    *file = replaced;
                    break;
                }
                Err(error) => tracing::error!("{error:#}"),
            }
        }
        tracing::warn!("this node is started anew, to get its data from the others");
        self.replaced.cancel();
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_set_aside_as_a_whole_also_if_that_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        let fill = |text: &str| {
            fs::create_dir_all(data.join("segments")).unwrap();
            fs::write(data.join("segments/1.seg"), text).unwrap();
            fs::write(data.join("cluster.json"), "{}").unwrap();
            fs::write(data.join("FORMAT"), "x").unwrap();
        };
        let kept = || fs::read_to_string(data.join("set-aside/segments/1.seg")).unwrap();
        fill("first");
        set_aside(data).unwrap();
        assert_eq!(kept(), "first");
        assert!(!data.join("segments").exists() && data.join("cluster.json").exists());
        // Again after a crash: nothing is left to be moved, and nothing is lost.
        set_aside(data).unwrap();
        assert_eq!(kept(), "first");
        // The next damage takes its place.
        fill("second");
        fs::rename(data.join("FORMAT"), data.join("set-aside/FORMAT")).unwrap();
        fs::remove_dir_all(data.join("set-aside/segments")).unwrap();
        set_aside(data).unwrap();
        assert_eq!(kept(), "second");
    }
}
