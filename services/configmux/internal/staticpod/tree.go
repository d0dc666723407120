package staticpod

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// maxAliased bounds the size in bytes that the aliases of a manifest may add: enough for environments that pods share,
// while a few lines of nested anchors do not fill the memory.
const maxAliased = 1 << 20

// nodeSize is the size of a node besides its text, so that a million empty nodes have a size.
const nodeSize = 16

// mayAlias reports whether the document may have aliases, which require an anchor and a reference. Both signs may also
// be part of a text.
func (d document) mayAlias() bool {
	return !d.isJSON && bytes.IndexByte(d.text, '&') >= 0 && bytes.IndexByte(d.text, '*') >= 0
}

// tree parses the document without following its aliases, so that its size is proportional to its text.
func (d document) tree() (*yamlv3.Node, error) {
	root := &yamlv3.Node{}
	if err := yamlv3.Unmarshal(d.text, root); err != nil {
		return nil, d.inManifest(err)
	}
	return root, nil
}

// aliased returns the size that its aliases add to the document, or a number above maxAliased.
func (d document) aliased() (int, error) {
	if !d.mayAlias() {
		return 0, nil
	}
	root, err := d.tree()
	if err != nil {
		return 0, err
	}
	m := measure{whole: map[*yamlv3.Node]int{}}
	m.sizeOf(root)
	return m.aliased, nil
}

// measure computes the size of nodes including their aliases, without following an alias twice.
type measure struct {
	// whole holds the sizes of the targets of aliases; 0 for one that is being measured, which then contains itself, and
	// which the decoder refuses.
	whole map[*yamlv3.Node]int
	// aliased is the total size of aliases outside of the targets of others.
	aliased int
	// inside is the depth in targets of aliases.
	inside int
}

func (m *measure) sizeOf(node *yamlv3.Node) int {
	if node.Kind == yamlv3.AliasNode {
		size, known := m.whole[node.Alias]
		if !known {
			m.whole[node.Alias] = 0
			m.inside++
			size = m.sizeOf(node.Alias)
			m.inside--
			m.whole[node.Alias] = size
		}
		if m.inside == 0 {
			m.aliased = min(m.aliased+size, maxAliased+1)
		}
		return size
	}
	size := nodeSize + len(node.Value)
	for _, child := range node.Content {
		size += m.sizeOf(child)
	}
	return min(size, maxAliased+1)
}

// useAliases subtracts the size of a document's aliases from the manifest's limit.
func (d *decoder) useAliases(doc document) error {
	more, err := doc.aliased()
	if err != nil {
		return err
	}
	if more > maxAliased-d.aliased {
		return fmt.Errorf(
			"line %d: the aliases of this document make the manifest more than %d MiB larger: write out what they stand for, or split it",
			doc.firstLine+1,
			maxAliased>>20,
		)
	}
	d.aliased += more
	return nil
}

// lineOf returns the line of a field of the present document in the manifest; for a missing field, that of its parent;
// 0 if unknown. It is called only for reported problems.
func (d *decoder) lineOf(path string) int {
	if !d.parsed {
		d.parsed = true
		// Without a tree only the line is missing.
		d.root, _ = d.doc.tree()
	}
	if d.root == nil || len(d.root.Content) == 0 {
		return 0
	}
	at := position{node: d.root.Content[0]}
	at.line = at.node.Line
	for _, step := range steps(path) {
		next, found := at.child(step)
		if next.node == nil {
			return 0
		}
		at = next
		if !found {
			break
		}
	}
	return d.doc.firstLine + at.line
}

// position is a position in a tree.
type position struct {
	node *yamlv3.Node
	line int
}

// child follows one step of a field's path. Without such a child it stays; it returns no node if the path is ambiguous.
func (p position) child(step string) (position, bool) {
	node := p.node
	if node.Kind == yamlv3.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yamlv3.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return position{node: node.Content[i+1], line: node.Content[i].Line}, true
			}
		}
	case yamlv3.SequenceNode:
		index, err := strconv.Atoi(step)
		if err != nil {
			return position{}, false
		}
		if index >= 0 && index < len(node.Content) {
			return position{node: node.Content[index], line: node.Content[index].Line}, true
		}
	case yamlv3.DocumentNode, yamlv3.ScalarNode, yamlv3.AliasNode:
	}
	return p, false
}

// steps splits the path of a field, "spec.containers[0].image", into its keys and indices. A part in brackets is one
// step, because keys of annotations contain dots.
func steps(path string) []string {
	var out []string
	for path != "" {
		end := strings.IndexAny(path, ".[")
		switch {
		case path[0] == '[' && strings.Contains(path, "]"):
			key, rest, _ := strings.Cut(path[1:], "]")
			out, path = append(out, key), rest
		case end < 0:
			out, path = append(out, path), ""
		case end == 0:
			path = path[1:]
		default:
			out, path = append(out, path[:end]), path[end:]
		}
	}
	return out
}
