//! `nexo policy` against a broker: it applies at once, can be taken away, and not everybody may set one.

#![allow(clippy::unwrap_used)]

mod common;

use common::Server;
use serde_json::json;

#[test]
fn a_policy_applies_to_what_is_there_and_can_be_taken_away() {
    let server = Server::start();
    server.ok(&["queue", "create", "mail", "--overflow", "drop-oldest"]);
    for body in ["a", "b", "c"] {
        server.ok(&["push", "mail", body]);
    }
    let set =
        ["policy", "set", "short", "^mail", r#"{"max-length": 2, "visibility": 5000}"#, "--priority", "-3"];
    assert_eq!(server.ok(&set), "created 'short'\n");
    assert_eq!(server.ok(&set), "changed 'short'\n");
    let shown = &server.json(&["policy", "show", "short"])[0];
    let expected = json!({
        "vhost": "/", "name": "short", "operator": false, "pattern": "^mail", "apply_to": "all", "priority": -3,
        "definition": {"max-length": 2, "visibility": 5000},
    });
    assert_eq!(*shown, expected);
    let queue = &server.json(&["queue", "show", "mail"])[0];
    assert_eq!((&queue["stats"]["ready"], &queue["config"]["visibility_ms"]), (&json!(2), &json!(5000)));
    assert!(server.ok(&["queue", "show", "mail"]).contains("short"), "it tells which policy applies");
    let bound = ["policy", "set", "bound", "", r#"{"max-length": 1}"#, "--operator", "--apply-to", "queues"];
    server.ok(&bound);
    assert_eq!(server.json(&["queue", "show", "mail"])[0]["stats"]["ready"], 1);
    assert_eq!(server.json(&["policy", "list", "--all-vhosts"]).len(), 1);
    assert!(server.ok(&["policy", "list", "--operator"]).contains("bound"));
    let kept = server.run(&["policy", "delete", "short"]).error();
    assert!(kept.contains("--yes"), "{kept}");
    server.ok(&["policy", "delete", "short", "--yes"]);
    server.ok(&["policy", "delete", "bound", "--operator", "-y"]);
    let config = &server.json(&["queue", "show", "mail"])[0]["config"];
    assert_eq!((&config["visibility_ms"], config.get("max_messages")), (&json!(30_000), None));
    let gone = server.run(&["policy", "show", "short"]).error();
    assert_eq!(gone, "nexo: show policy 'short': there is no policy 'short' in virtual host '/'");
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let server = Server::start();
    let refused = |definition: &str| server.run(&["policy", "set", "p", "", definition]).error();
    assert!(refused(r#"{"message-ttl": "soon"}"#).contains("is not a valid message TTL"));
    assert!(refused("max-length=5").contains("definition must be a JSON object"));
    let nowhere = server.run(&["policy", "set", "p", "", r#"{"expires": 1}"#, "--vhost", "none"]).error();
    assert!(nowhere.contains("virtual host 'none' does not exist"), "{nowhere}");
}

#[test]
fn policymakers_set_policies_and_only_administrators_bound_them() {
    let server = Server::start();
    for (user, tag) in [("ann", "policymaker"), ("bob", "monitoring")] {
        server.ok(&["user", "add", user, "--new-password", "secret", "--tag", tag]);
        server.ok(&["permission", "set", user, "--configure", "", "--write", "", "--read", ""]);
    }
    server.ok(&["vhost", "add", "acme"]);
    let set = |user: &str, more: &[&str]| {
        let mut args =
            vec!["policy", "set", "p", "", r#"{"max-length": 5}"#, "--user", user, "--password", "secret"];
        args.extend(more);
        server.run(&args)
    };
    assert_eq!(set("ann", &[]).ok(), "created 'p'\n");
    assert!(set("ann", &["--operator"]).error().contains("user 'ann' is no administrator"));
    assert!(
        set("ann", &["--vhost", "acme"]).error().contains("access to vhost 'acme' refused for user 'ann'")
    );
    assert!(set("bob", &[]).error().contains("user 'bob' is no policymaker"));
    let seen = server.json(&["policy", "list", "--user", "bob", "--password", "secret"]);
    assert_eq!(seen.len(), 1, "whoever may come in may know of it");
}
