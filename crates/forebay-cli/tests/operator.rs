//! What an operator does to a running agent.

mod node;

use node::Node;

#[test]
fn a_capacity_below_the_agents_own_needs_can_be_raised_again() {
    let node = Node::start(&["--capacity", "64MiB"]);
    let client = node.client();
    client.admin().set_capacity(1).unwrap();
    let status = client.admin().status().expect("the operator is let in without room");
    let used: u64 = status.used_bytes.iter().map(|(_, bytes)| bytes).sum();
    assert!(used > status.capacity_bytes, "there was room after all: {status:?}");
    client.admin().set_capacity(64 << 20).unwrap();
    assert_eq!(client.admin().status().unwrap().capacity_bytes, 64 << 20);
}
