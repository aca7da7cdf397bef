//! What users may do over AMQP, and what they are told when they may not, in RabbitMQ's words.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic like the tests themselves")]

mod raw_client;

use std::time::Duration;

use nexo_access::{NewPassword, PermissionTexts, Tag, UserLimits, UserName};
use nexo_amqp::codec::method::{basic, exchange, queue};
use nexo_amqp::codec::{AmqpMethod, PropertiesBuilder, ShortStr, Table, TableBuf};
use nexo_amqp_client::{Client, Error, Login, methods};
use nexo_broker::access::AccessRecord;
use raw_client::{PERSISTENT, Served, within};

const PATIENCE: Duration = Duration::from_secs(60);

fn user(text: &str) -> UserName {
    UserName::new(text).unwrap()
}

fn short(text: &'static str) -> ShortStr<'static> {
    ShortStr::from_static(text)
}

/// A user whose password is its name.
async fn add(served: &Served, name: &str) {
    let password = NewPassword::Plain(name.as_bytes().to_vec());
    served.logins.add_user(&user(name), password, [Tag::new("mine").unwrap()].into()).await.unwrap();
}

async fn allow(served: &Served, name: &str, [configure, write, read]: [&str; 3]) {
    let permissions = PermissionTexts { configure: configure.into(), write: write.into(), read: read.into() };
    let change = AccessRecord::SetPermissions { user: user(name), vhost: "/".into(), permissions };
    served.logins.change(&[change]).await.unwrap();
}

async fn connect(served: &Served, name: &str) -> Result<Client, Error> {
    let login = Login { user: name.into(), password: name.into(), ..Login::default() };
    Client::connect(served.address, &login, PATIENCE).await.map_err(|error| match error {
        Error::LogIn { source, .. } => *source,
        other => other,
    })
}

/// Somebody with channel 1 open.
async fn client(served: &Served, name: &str) -> Client {
    let mut client = connect(served, name).await.unwrap();
    client.open_channel(1).await.unwrap();
    client
}

/// What a method comes to: nothing, or the code and the words with which the channel ends, after which it is open again.
async fn call<M: AmqpMethod>(client: &mut Client, method: &M, answer: &str) -> Option<(u16, String)> {
    let outcome = within(client.call(1, method, answer)).await.map(drop);
    outcome_of(client, outcome).await
}

async fn outcome_of(client: &mut Client, outcome: Result<(), Error>) -> Option<(u16, String)> {
    match outcome {
        Ok(()) => None,
        Err(Error::Closed { what: "channel", code, text }) => {
            client.add(1, &nexo_amqp::codec::method::channel::CloseOk {});
            client.open_channel(1).await.unwrap();
            Some((code, text))
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// The words of a refusal.
fn refused(resource: &str, user: &str) -> Option<(u16, String)> {
    let words = format!("ACCESS_REFUSED - access to {resource} in vhost '/' refused for user '{user}'");
    Some((403, words))
}

fn declare(name: &'static str) -> queue::Declare<'static> {
    methods::declare_queue(short(name))
}

fn declare_exchange<'a>(
    name: &'static str,
    kind: &'static str,
    arguments: Table<'a>,
) -> exchange::Declare<'a> {
    exchange::Declare {
        ticket: 0,
        exchange: short(name),
        kind: short(kind),
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        nowait: false,
        arguments,
    }
}

fn bind(name: &'static str, source: &'static str, key: &'static str) -> queue::Bind<'static> {
    queue::Bind {
        ticket: 0,
        queue: short(name),
        exchange: short(source),
        routing_key: short(key),
        nowait: false,
        arguments: Table::EMPTY,
    }
}

fn unbind(name: &'static str, source: &'static str, key: &'static str) -> queue::Unbind<'static> {
    queue::Unbind {
        ticket: 0,
        queue: short(name),
        exchange: short(source),
        routing_key: short(key),
        arguments: Table::EMPTY,
    }
}

fn exchange_bind(destination: &'static str, source: &'static str) -> exchange::Bind<'static> {
    exchange::Bind {
        ticket: 0,
        destination: short(destination),
        source: short(source),
        routing_key: ShortStr::EMPTY,
        nowait: false,
        arguments: Table::EMPTY,
    }
}

/// Publishes and waits for the confirm: what came of it.
async fn publish(client: &mut Client, exchange: &'static str, key: &'static str) -> Option<(u16, String)> {
    publish_with(client, exchange, key, PERSISTENT).await
}

async fn publish_with(
    client: &mut Client,
    exchange: &'static str,
    key: &'static str,
    properties: &[u8],
) -> Option<(u16, String)> {
    let select = nexo_amqp::codec::method::confirm::Select { nowait: false };
    within(client.call(1, &select, "confirm.select-ok")).await.unwrap();
    client.add_message(1, &methods::publish(short(exchange), short(key)), properties, b"x");
    client.flush().await.unwrap();
    let outcome = within(client.expect("basic.ack")).await.map(drop);
    outcome_of(client, outcome).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_permissions_does_not_come_into_the_vhost() {
    let served = Served::start().await;
    add(&served, "ann").await;
    let error = connect(&served, "ann").await.unwrap_err();
    let Error::Closed { what, code, text } = error else { panic!("{error:?}") };
    assert_eq!((what, code), ("connection", 530));
    assert_eq!(text, "NOT_ALLOWED - access to vhost '/' refused for user 'ann'");
    allow(&served, "ann", ["", "", ""]).await;
    client(&served, "ann").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_method_needs_its_permission() {
    let served = Served::start().await;
    add(&served, "ann").await;
    let mut guest = client(&served, "guest").await;
    for name in ["q", "other"] {
        assert_eq!(call(&mut guest, &declare(name), "queue.declare-ok").await, None);
    }
    for name in ["x", "y"] {
        let declare = declare_exchange(name, "fanout", Table::EMPTY);
        assert_eq!(call(&mut guest, &declare, "exchange.declare-ok").await, None);
    }
    allow(&served, "ann", ["", "", ""]).await;
    let mut ann = client(&served, "ann").await;
    let queue = || refused("queue 'q'", "ann");
    let get = basic::Get { ticket: 0, queue: short("q"), no_ack: true };
    let consume = methods::consume(short("q"), short("tag"));
    let purge = queue::Purge { ticket: 0, queue: short("q"), nowait: false };
    let delete =
        queue::Delete { ticket: 0, queue: short("q"), if_unused: false, if_empty: false, nowait: false };
    let delete_exchange =
        exchange::Delete { ticket: 0, exchange: short("x"), if_unused: false, nowait: false };
    let declare_x = declare_exchange("x", "fanout", Table::EMPTY);

    // Nothing is allowed.
    assert_eq!(call(&mut ann, &declare("q"), "queue.declare-ok").await, queue());
    assert_eq!(call(&mut ann, &delete, "queue.delete-ok").await, queue());
    assert_eq!(call(&mut ann, &purge, "queue.purge-ok").await, queue());
    assert_eq!(call(&mut ann, &get, "basic.get-empty").await, queue());
    assert_eq!(call(&mut ann, &consume, "basic.consume-ok").await, queue());
    assert_eq!(call(&mut ann, &bind("q", "x", ""), "queue.bind-ok").await, queue());
    assert_eq!(call(&mut ann, &unbind("q", "x", ""), "queue.unbind-ok").await, queue());
    assert_eq!(call(&mut ann, &declare_x, "exchange.declare-ok").await, refused("exchange 'x'", "ann"));
    assert_eq!(call(&mut ann, &delete_exchange, "exchange.delete-ok").await, refused("exchange 'x'", "ann"));
    assert_eq!(
        call(&mut ann, &exchange_bind("x", "y"), "exchange.bind-ok").await,
        refused("exchange 'x'", "ann")
    );
    assert_eq!(publish(&mut ann, "x", "").await, refused("exchange 'x'", "ann"));
    assert_eq!(publish(&mut ann, "", "q").await, refused("exchange 'amq.default'", "ann"));
    assert_eq!(
        publish(&mut ann, "missing", "").await,
        refused("exchange 'missing'", "ann"),
        "not even that it is missing"
    );
    // Whoever is in may ask whether something is there, as in RabbitMQ.
    let passive = queue::Declare { passive: true, ..declare("q") };
    assert_eq!(call(&mut ann, &passive, "queue.declare-ok").await, None);

    // Reading.
    allow(&served, "ann", ["", "", "^(q|x)$"]).await;
    assert_eq!(call(&mut ann, &get, "basic.get-empty").await, None);
    assert_eq!(call(&mut ann, &purge, "queue.purge-ok").await, None);
    assert_eq!(call(&mut ann, &consume, "basic.consume-ok").await, None);
    assert_eq!(
        call(&mut ann, &bind("q", "x", ""), "queue.bind-ok").await,
        queue(),
        "that writes to the queue"
    );
    assert_eq!(call(&mut ann, &delete, "queue.delete-ok").await, queue());

    // Writing.
    allow(&served, "ann", ["", "^(q|x|amq.default)$", ""]).await;
    assert_eq!(call(&mut ann, &bind("q", "x", ""), "queue.bind-ok").await, refused("exchange 'x'", "ann"));
    assert_eq!(
        call(&mut ann, &unbind("q", "x", ""), "queue.unbind-ok").await,
        refused("exchange 'x'", "ann")
    );
    assert_eq!(
        call(&mut ann, &exchange_bind("x", "y"), "exchange.bind-ok").await,
        refused("exchange 'y'", "ann")
    );
    assert_eq!(publish(&mut ann, "x", "").await, None);
    assert_eq!(publish(&mut ann, "", "q").await, None);
    assert_eq!(publish(&mut ann, "y", "").await, refused("exchange 'y'", "ann"));

    // Both.
    allow(&served, "ann", ["", "^(q|x)$", "^(x|y)$"]).await;
    assert_eq!(call(&mut ann, &bind("q", "x", ""), "queue.bind-ok").await, None);
    assert_eq!(call(&mut ann, &unbind("q", "x", ""), "queue.unbind-ok").await, None);
    assert_eq!(call(&mut ann, &exchange_bind("x", "y"), "exchange.bind-ok").await, None);

    // Configuring.
    allow(&served, "ann", ["^(q|x)$", "", ""]).await;
    assert_eq!(call(&mut ann, &declare("q"), "queue.declare-ok").await, None);
    assert_eq!(call(&mut ann, &declare("other"), "queue.declare-ok").await, refused("queue 'other'", "ann"));
    assert_eq!(call(&mut ann, &declare_x, "exchange.declare-ok").await, None);
    assert_eq!(call(&mut ann, &delete_exchange, "exchange.delete-ok").await, None);
    assert_eq!(call(&mut ann, &delete, "queue.delete-ok").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_passed_on_is_read_here_and_written_there() {
    let served = Served::start().await;
    add(&served, "ann").await;
    allow(&served, "ann", [".*", "", ""]).await;
    let mut ann = client(&served, "ann").await;
    let mut arguments = TableBuf::new();
    arguments.put(short("x-dead-letter-exchange"), "dead");
    let dead_lettering = queue::Declare { arguments: arguments.as_table(), ..declare("q") };
    assert_eq!(call(&mut ann, &dead_lettering, "queue.declare-ok").await, refused("queue 'q'", "ann"));
    let mut arguments = TableBuf::new();
    arguments.put(short("alternate-exchange"), "dead");
    let alternate = declare_exchange("x", "fanout", arguments.as_table());
    assert_eq!(call(&mut ann, &alternate, "exchange.declare-ok").await, refused("exchange 'x'", "ann"));
    allow(&served, "ann", [".*", "", "^(q|x)$"]).await;
    assert_eq!(call(&mut ann, &dead_lettering, "queue.declare-ok").await, refused("exchange 'dead'", "ann"));
    assert_eq!(call(&mut ann, &alternate, "exchange.declare-ok").await, refused("exchange 'dead'", "ann"));
    allow(&served, "ann", [".*", "^dead$", "^(q|x)$"]).await;
    assert_eq!(call(&mut ann, &dead_lettering, "queue.declare-ok").await, None);
    assert_eq!(call(&mut ann, &alternate, "exchange.declare-ok").await, None);
    // It is there: nobody asks again.
    allow(&served, "ann", [".*", "", ""]).await;
    assert_eq!(call(&mut ann, &dead_lettering, "queue.declare-ok").await, None);
    assert_eq!(call(&mut ann, &alternate, "exchange.declare-ok").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_asked_for_by_routing_key() {
    let served = Served::start().await;
    add(&served, "ann").await;
    allow(&served, "ann", [".*", ".*", ".*"]).await;
    let topics = AccessRecord::SetTopics {
        user: user("ann"),
        vhost: "/".into(),
        exchange: "amq.topic".into(),
        write: "^{username}\\.".into(),
        read: "^{username}\\.".into(),
    };
    served.logins.change(&[topics]).await.unwrap();
    let mut ann = client(&served, "ann").await;
    assert_eq!(call(&mut ann, &declare("q"), "queue.declare-ok").await, None);
    let words = |key: &str| {
        let words = format!(
            "ACCESS_REFUSED - access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
        );
        Some((403, words))
    };
    assert_eq!(publish(&mut ann, "amq.topic", "ann.x").await, None);
    assert_eq!(publish(&mut ann, "amq.topic", "bob.x").await, words("bob.x"));
    assert_eq!(publish(&mut ann, "amq.topic", "ann.y").await, None);
    assert_eq!(publish(&mut ann, "amq.fanout", "bob.x").await, None, "it is no topic exchange");
    assert_eq!(call(&mut ann, &bind("q", "amq.topic", "ann.#"), "queue.bind-ok").await, None);
    assert_eq!(call(&mut ann, &bind("q", "amq.topic", "#"), "queue.bind-ok").await, words("#"));
    assert_eq!(call(&mut ann, &unbind("q", "amq.topic", "#"), "queue.unbind-ok").await, words("#"));
    // Neither queue nor key means the last queue, by its name.
    assert_eq!(call(&mut ann, &declare("q"), "queue.declare-ok").await, None);
    assert_eq!(call(&mut ann, &bind("", "amq.topic", ""), "queue.bind-ok").await, words("q"));
    // Copies go by keys of their own. The inside of a table: CC, an array of one text.
    let copied = |key: &[u8]| {
        let text = [&b"S"[..], &(key.len() as u32).to_be_bytes(), key].concat();
        let table = [&b"\x02CCA"[..], &(text.len() as u32).to_be_bytes(), &text].concat();
        PropertiesBuilder::new().headers(Table::parse(&table).unwrap()).to_vec()
    };
    assert_eq!(publish_with(&mut ann, "amq.topic", "ann.x", &copied(b"ann.copy")).await, None);
    assert_eq!(publish_with(&mut ann, "amq.topic", "ann.x", &copied(b"bob.x")).await, words("bob.x"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_publishes_in_another_ones_name() {
    let served = Served::start().await;
    add(&served, "ann").await;
    allow(&served, "ann", [".*", ".*", ".*"]).await;
    let mut ann = client(&served, "ann").await;
    let of = |name: &'static str| PropertiesBuilder::new().user_id(short(name)).to_vec();
    assert_eq!(publish_with(&mut ann, "amq.fanout", "", &of("ann")).await, None);
    let words = "PRECONDITION_FAILED - user_id property set to 'guest' but authenticated user was 'ann'";
    assert_eq!(publish_with(&mut ann, "amq.fanout", "", &of("guest")).await, Some((406, words.to_owned())));
}

/// A channel remembers where it may publish, for as long as nothing changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_was_taken_away_ends_at_once() {
    let served = Served::start().await;
    add(&served, "ann").await;
    allow(&served, "ann", [".*", ".*", ".*"]).await;
    let mut ann = client(&served, "ann").await;
    for _ in 0..3 {
        assert_eq!(publish(&mut ann, "amq.fanout", "").await, None);
    }
    allow(&served, "ann", [".*", "^other$", ".*"]).await;
    assert_eq!(publish(&mut ann, "amq.fanout", "").await, refused("exchange 'amq.fanout'", "ann"));
    // With the password nothing ends: it is for the next login.
    served.logins.set_password(&user("ann"), NewPassword::Plain(b"new".to_vec())).await.unwrap();
    assert_eq!(publish(&mut ann, "other", "").await.unwrap().0, 404, "it may, and there is none");
    assert!(connect(&served, "ann").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connections_of_a_user_end_with_it() {
    let served = Served::start().await;
    for name in ["ann", "bob"] {
        add(&served, name).await;
        allow(&served, name, [".*", ".*", ".*"]).await;
    }
    let (mut ann, mut bob) = (client(&served, "ann").await, client(&served, "bob").await);
    served.logins.delete_user(&user("ann")).await.unwrap();
    let error = within(ann.expect("basic.ack")).await.unwrap_err();
    let Error::Closed { what, code, text } = error else { panic!("{error:?}") };
    assert_eq!((what, code, &*text), ("connection", 320, "CONNECTION_FORCED - user 'ann' was deleted"));
    assert_eq!(call(&mut bob, &declare("q"), "queue.declare-ok").await, None);
    assert!(connect(&served, "ann").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_no_more_connections_and_channels_than_allowed() {
    let served = Served::start().await;
    add(&served, "ann").await;
    allow(&served, "ann", [".*", ".*", ".*"]).await;
    let limits = UserLimits { max_connections: Some(1), max_channels: Some(2) };
    served.logins.change(&[AccessRecord::SetLimits { user: user("ann"), limits }]).await.unwrap();
    let mut ann = client(&served, "ann").await;
    let error = connect(&served, "ann").await.unwrap_err();
    let Error::Closed { code, text, .. } = error else { panic!("{error:?}") };
    let words = "NOT_ALLOWED - connection refused for user 'ann': user connection limit (1) is reached";
    assert_eq!((code, &*text), (530, words));
    ann.open_channel(2).await.unwrap();
    ann.close_channel(2).await.unwrap();
    ann.open_channel(3).await.unwrap();
    let error = ann.open_channel(4).await.unwrap_err();
    let Error::Closed { what, code, text } = error else { panic!("{error:?}") };
    assert_eq!((what, code), ("connection", 530));
    let words = "number of channels opened for user 'ann' has reached the maximum allowed user limit of (2)";
    assert_eq!(text, format!("NOT_ALLOWED - {words}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_secret_is_taken() {
    let served = Served::start().await;
    let mut guest = client(&served, "guest").await;
    let update =
        nexo_amqp::codec::method::connection::UpdateSecret { new_secret: b"s", reason: short("renewed") };
    within(guest.call(0, &update, "connection.update-secret-ok")).await.unwrap();
}
