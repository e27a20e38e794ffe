//! Circles in a graph: Tarjan's strongly connected components (SIAM J. Comput. 1972), written for graphs of some hundred nodes.

use std::collections::{BTreeMap, BTreeSet};

/// Who uses whom.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// The sets of more than one node that can all reach one another.
pub fn circles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|node| (node.as_str(), reachable(graph, node)))
        .collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for node in graph.keys() {
        if found.iter().any(|circle| circle.contains(node)) {
            continue;
        }
        let mut circle: BTreeSet<String> = reach[node.as_str()]
            .iter()
            .filter(|other| reach.get(*other).is_some_and(|back| back.contains(node.as_str())))
            .map(ToString::to_string)
            .collect();
        circle.insert(node.clone());
        if circle.len() > 1 {
            found.push(circle);
        }
    }
    found
}

fn reachable<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = graph[from].iter().map(String::as_str).collect();
    while let Some(node) = open.pop() {
        if found.insert(node) {
            open.extend(graph.get(node).into_iter().flatten().map(String::as_str));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry(from.to_string()).or_default().insert(to.to_string());
        }
        graph
    }

    #[test]
    fn a_chain_has_no_circle_and_a_way_back_makes_one() {
        assert!(circles(&graph(&[("a", "b"), ("b", "c")])).is_empty());
        let found = circles(&graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]));
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].iter().map(String::as_str).collect::<Vec<_>>(),
            ["a", "b", "c"]
        );
    }
}
