//! Nodes on loopback: real QUIC, certificates of a CA made for the test, shaped links.

#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod nodes;
mod service;

use std::time::Duration;

use gossip::frame::{DATAGRAM_LEN_MAX, Message};
use gossip::transport::{Dropped, LinkShape, Links, Rejected, Settings, Transport};
use nodes::{AP, Authority, EU, Node, US, eventually, rows, swim};
use quinn::VarInt;
use region::units::RegionId;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_greet_and_exchange_rows_in_both_directions() {
    let authority = Authority::new();
    let mut eu = Node::start(&authority, EU, "eu-1", &[]);
    let mut us = Node::start(&authority, US, "us-1", &[eu.address()]);
    let hello = us.hello().await;
    assert_eq!(hello.member, eu.transport.own());
    let hello = eu.hello().await;
    assert_eq!(hello.member, us.transport.own());

    us.transport.send(eu.address(), &rows(0..3));
    let inbound = eu.receive().await;
    assert_eq!(inbound.frame, rows(0..3));
    assert_eq!(inbound.from.region, US);
    assert_eq!(inbound.from.address, Some(us.address()));

    // The accepted connection serves the other direction.
    eu.transport.send(us.address(), &rows(5..6));
    let inbound = us.receive().await;
    assert_eq!(inbound.frame, rows(5..6));
    assert_eq!(inbound.from.region, EU);
    assert_eq!(eu.transport.counters().connects(), 0);
    nodes::stop([eu, us]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_another_authority_is_refused() {
    let mut eu = Node::start(&Authority::new(), EU, "eu-1", &[]);
    let stranger = Node::start(&Authority::new(), US, "us-1", &[eu.address()]);
    eventually("a refused attempt", || {
        stranger.transport.counters().connect_failures() > 0
    })
    .await;
    stranger.transport.send(eu.address(), &rows(0..1));
    assert!(eu.receives_nothing_for(Duration::from_millis(500)).await);
    assert_eq!(stranger.transport.counters().connects(), 0);
    nodes::stop([eu, stranger]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_49_region_of_a_peer_is_that_of_its_certificate() {
    let authority = Authority::new();
    let mut eu = Node::start(&authority, EU, "eu-1", &[]);
    // A client with a certificate of `ap` that says it is a node of `us`.
    let liar = authority.client(&["ap.region.tidegate"]);
    let connection = liar.connect(eu.address(), "node.tidegate").unwrap();
    let connection = connection.await.unwrap();
    connection
        .send_datagram(nodes::greeting("us-1", "us").into())
        .unwrap();
    connection
        .send_datagram(nodes::encoded(&rows(0..1)).into())
        .unwrap();
    let inbound = eu.receive().await;
    assert_eq!(inbound.frame, rows(0..1));
    assert_eq!(inbound.from.region, AP);
    assert_eq!(inbound.from.address, None);
    assert_eq!(eu.transport.counters().rejected(Rejected::Greeting), 1);
    nodes::stop([eu]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_of_no_region_or_of_several_is_refused() {
    let authority = Authority::new();
    let eu = Node::start(&authority, EU, "eu-1", &[]);
    for names in [
        &["sa.region.tidegate"][..],
        &["ap.region.tidegate", "us.region.tidegate"],
    ] {
        let client = authority.client(names);
        let connection = client.connect(eu.address(), "node.tidegate").unwrap();
        let error = connection.await.unwrap().closed().await;
        assert!(error.to_string().contains("names no region"), "{error}");
    }
    assert_eq!(eu.transport.counters().rejected(Rejected::Certificate), 2);
    let wrong = authority.settings(EU, "eu-2", &[]);
    let wrong = Settings {
        region: RegionId(0),
        ..wrong
    };
    let error = Transport::bind(wrong).unwrap_err();
    assert!(
        error.to_string().contains("does not name region ap"),
        "{error}"
    );
    nodes::stop([eu]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_49_nonsense_is_counted_and_the_connection_goes_on() {
    let authority = Authority::new();
    let mut eu = Node::start(&authority, EU, "eu-1", &[]);
    let client = authority.client(&["us.region.tidegate"]);
    let connection = client.connect(eu.address(), "node.tidegate").unwrap();
    let connection = connection.await.unwrap();

    connection.send_datagram(vec![0xa5; 700].into()).unwrap();
    connection.send_datagram(vec![1, 2, 3].into()).unwrap();
    let mut stream = connection.open_uni().await.unwrap();
    stream.write_all(&[7; 5_000]).await.unwrap();
    stream.finish().unwrap();
    let mut broken = connection.open_uni().await.unwrap();
    broken.write_all(&[1]).await.unwrap();
    broken.reset(VarInt::from_u32(9)).unwrap();
    let mut endless = connection.open_uni().await.unwrap();
    drop(endless.write_all(&vec![1; 300_000]).await);
    drop(endless.finish());

    let counters = eu.transport.counters().clone();
    eventually("five rejections", || {
        let total: u64 = Rejected::ALL
            .iter()
            .map(|reason| counters.rejected(*reason))
            .sum();
        total >= 5
    })
    .await;
    assert_eq!(counters.rejected(Rejected::Version), 2);
    assert_eq!(counters.rejected(Rejected::Stream), 2);
    connection
        .send_datagram(nodes::encoded(&rows(0..1)).into())
        .unwrap();
    assert_eq!(eu.receive().await.frame, rows(0..1));
    assert!(connection.close_reason().is_none());
    nodes::stop([eu]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_49_flood_of_nonsense_ends_the_connection() {
    let authority = Authority::new();
    let eu = Node::start(&authority, EU, "eu-1", &[]);
    let client = authority.client(&["us.region.tidegate"]);
    let connection = client.connect(eu.address(), "node.tidegate").unwrap();
    let connection = connection.await.unwrap();
    while connection
        .send_datagram_wait(vec![0; 10].into())
        .await
        .is_ok()
    {
        tokio::task::yield_now().await;
    }
    assert_eq!(eu.transport.counters().rejected(Rejected::Flood), 1);
    nodes::stop([eu]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_52_five_thousand_rows_at_once_all_arrive() {
    let authority = Authority::new();
    let mut eu = Node::start(&authority, EU, "eu-1", &[]);
    let mut us = Node::start(&authority, US, "us-1", &[eu.address()]);
    eu.hello().await;
    us.hello().await;
    let Message::Rows(all) = rows(0..5_000).message else {
        panic!("rows are rows");
    };
    for frame in us.transport.codec().split(&[], Message::Rows(all.clone())) {
        us.transport.send(eu.address(), &frame);
    }
    let mut received = Vec::new();
    while received.len() < all.len() {
        if let Message::Rows(rows) = eu.receive().await.frame.message {
            received.extend(rows);
        }
    }
    received.sort_by_key(|row| row.key);
    assert_eq!(received, all);
    for reason in Dropped::ALL {
        assert_eq!(us.transport.counters().dropped(reason), 0, "{reason:?}");
    }
    nodes::stop([eu, us]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_52_large_frame_goes_by_stream_and_small_ones_by_datagram() {
    let authority = Authority::new();
    let mut eu = Node::start(&authority, EU, "eu-1", &[]);
    let mut us = Node::start(&authority, US, "us-1", &[eu.address()]);
    eu.hello().await;
    us.hello().await;
    let large = rows(0..1_500);
    let len = nodes::encoded(&large).len();
    assert!((100_000..250_000).contains(&len), "{len}");
    us.transport.send(eu.address(), &large);
    assert_eq!(eu.receive().await.frame, large);
    assert_eq!(us.transport.counters().sent_by_stream(), 1);
    let small = swim(1_000);
    assert!(nodes::encoded(&small).len() <= DATAGRAM_LEN_MAX);
    us.transport.send(eu.address(), &small);
    assert_eq!(eu.receive().await.frame, small);
    assert_eq!(us.transport.counters().sent_by_stream(), 1);
    us.transport.send(eu.address(), &rows(0..4_000));
    eventually("the oversize frame to be counted", || {
        us.transport.counters().dropped(Dropped::TooLarge) == 1
    })
    .await;
    nodes::stop([eu, us]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_52_queue_for_an_unreachable_peer_is_bounded_and_keeps_the_newest() {
    let authority = Authority::new();
    let us = Node::start(&authority, US, "us-1", &[]);
    // Nobody listens here until the node below starts.
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    for number in 0..5_000 {
        us.transport.send(address, &rows(number..number + 1));
    }
    let counters = us.transport.counters();
    assert!(counters.dropped(Dropped::QueueFull) >= 900);
    drop(free);
    let mut eu = Node::start_at(&authority, EU, "eu-1", address);
    let newest = loop {
        if let Message::Rows(rows) = eu.receive().await.frame.message
            && rows[0].key.client.0 == 4_999
        {
            break rows[0].key.client.0;
        }
    };
    assert_eq!(newest, 4_999);
    nodes::stop([eu, us]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_54_restarted_peer_on_the_same_port_is_reached_within_seconds() {
    let authority = Authority::new();
    let mut eu = Node::start(&authority, EU, "eu-1", &[]);
    let address = eu.address();
    // A node killed with SIGKILL says no good-bye: its endpoint is gone, its peers know nothing.
    let dying = nodes::Silent::start(&authority, US, &[address]);
    let us_at = dying.address;
    loop {
        if let Message::Hello(hello) = eu.next().await.frame.message {
            assert_eq!(hello.member.address(), us_at);
            break;
        }
    }
    dying.kill().await;
    let mut us = Node::start_at(&authority, US, "us-1", us_at);
    let began = tokio::time::Instant::now();
    let mut number = 0;
    loop {
        eu.transport.send(us_at, &rows(number..number + 1));
        number += 1;
        if us.receives_rows_within(Duration::from_millis(100)).await {
            break;
        }
        // A tenth of a second with resets; the idle timeout alone would take four.
        assert!(began.elapsed() < Duration::from_secs(3), "not reached");
    }
    nodes::stop([eu, us]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_link_drops_everything_and_resumes_when_healed() {
    let authority = Authority::new();
    let links = Links::default();
    let mut eu = Node::start_linked(&authority, EU, "eu-1", &[], &links);
    let mut us = Node::start_linked(&authority, US, "us-1", &[eu.address()], &links);
    eu.hello().await;
    us.hello().await;
    links.cut(US, EU, true);
    us.transport.send(eu.address(), &rows(0..1));
    us.transport.send(eu.address(), &rows(0..1_500));
    eventually("both frames at the cut", || {
        us.transport.counters().dropped(Dropped::LinkCut) >= 2
    })
    .await;
    // The other direction still works, over the same connection.
    eu.transport.send(us.address(), &rows(1..2));
    assert_eq!(us.receive().await.frame, rows(1..2));
    links.cut(US, EU, false);
    us.transport.send(eu.address(), &rows(2..3));
    assert_eq!(eu.receive().await.frame, rows(2..3));
    nodes::stop([eu, us]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_greet_when_a_link_that_was_cut_from_the_start_heals() {
    let authority = Authority::new();
    let links = Links::default();
    let cut = LinkShape {
        cut: true,
        ..LinkShape::default()
    };
    links.set(US, EU, cut);
    links.set(EU, US, cut);
    let mut eu = Node::start_linked(&authority, EU, "eu-1", &[], &links);
    let mut us = Node::start_linked(&authority, US, "us-1", &[eu.address()], &links);
    assert!(eu.receives_nothing_for(Duration::from_secs(1)).await);
    links.cut(US, EU, false);
    links.cut(EU, US, false);
    assert_eq!(eu.hello().await.member.name(), "us-1");
    assert_eq!(us.hello().await.member.name(), "eu-1");
    nodes::stop([eu, us]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shaped_link_delays_frames_one_way() {
    let authority = Authority::new();
    let links = Links::default();
    let delay = Duration::from_millis(150);
    links.set(
        US,
        EU,
        LinkShape {
            delay,
            ..LinkShape::default()
        },
    );
    let mut eu = Node::start_linked(&authority, EU, "eu-1", &[], &links);
    let mut us = Node::start_linked(&authority, US, "us-1", &[eu.address()], &links);
    eu.hello().await;
    us.hello().await;
    for frame in [rows(0..1), rows(0..1_500)] {
        let began = tokio::time::Instant::now();
        us.transport.send(eu.address(), &frame);
        assert_eq!(eu.receive().await.frame, frame);
        assert!(began.elapsed() >= delay, "{:?}", began.elapsed());
    }
    nodes::stop([eu, us]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_node_sends_what_it_has_queued() {
    let authority = Authority::new();
    let mut eu = Node::start(&authority, EU, "eu-1", &[]);
    let mut us = Node::start(&authority, US, "us-1", &[eu.address()]);
    eu.hello().await;
    us.hello().await;
    for number in 0..50 {
        us.transport.send(eu.address(), &rows(number..number + 1));
    }
    us.transport.shutdown().await;
    for number in 0..50 {
        assert_eq!(eu.receive().await.frame, rows(number..number + 1));
    }
    nodes::stop([eu]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seed_by_name_finds_the_node() {
    let authority = Authority::new();
    let mut eu = Node::start(&authority, EU, "eu-1", &[]);
    let port = eu.address().port();
    let us = authority.settings(US, "us-1", &[]);
    let us = Settings {
        seeds: vec![format!("localhost:{port}"), "no-such-name.invalid:1".into()],
        ..us
    };
    let us = Node::from(Transport::bind(us).unwrap());
    assert_eq!(eu.hello().await.member.name(), "us-1");
    nodes::stop([eu, us]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seed_that_is_the_node_itself_is_dialled_once_and_never_greeted() {
    let authority = Authority::new();
    // Bound to all interfaces, so that another address than the advertised one leads home too.
    let free = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let home = authority.settings(EU, "eu-1", &[]);
    let home = Settings {
        bind: format!("0.0.0.0:{port}").parse().unwrap(),
        advertise: Some(format!("127.0.0.1:{port}").parse().unwrap()),
        seeds: vec![format!("127.0.0.2:{port}")],
        ..home
    };
    let mut home = Node::from(Transport::bind(home).unwrap());
    assert!(home.receives_nothing_for(Duration::from_secs(7)).await);
    assert_eq!(home.transport.counters().connects(), 1);
    assert_eq!(home.transport.counters().connections(), 0);
    nodes::stop([home]).await;
}
