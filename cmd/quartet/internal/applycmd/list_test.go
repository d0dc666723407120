package applycmd

import (
	"path/filepath"
	"strings"
	"testing"
)

// listed returns a YAML list with items from manifests.
func listed(kind string, manifests ...string) string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: " + kind + "\nmetadata: {resourceVersion: ''}\nitems:\n")
	for _, m := range manifests {
		b.WriteString("- " + strings.ReplaceAll(strings.TrimSpace(m), "\n", "\n  ") + "\n")
	}
	return b.String()
}

func jsonPod(name string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `"},"spec":{"containers":[{"name":"c","image":"i:1"}]}}`
}

// untyped returns an item without its kind, as in a PodList.
func untyped(manifest string) string {
	return strings.TrimPrefix(manifest, "apiVersion: v1\nkind: Pod\n")
}

func TestListsAreAppliedAndDeletedItemByItem(t *testing.T) {
	n := newNode(t)
	n.write(
		"m/1.yaml",
		"# a comment\n---\n"+listed(
			"List",
			manifest("a", "i:1"),
			manifest("b", "i:1"),
		)+"--- # another\n"+manifest(
			"c",
			"i:1",
		),
	)
	n.write(
		"m/2.json",
		"{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"PodList\",\n\t\"items\": [\n\t\t"+jsonPod("d")+"\n\t]\n}\n",
	)
	dir := filepath.Join(n.dir, "m")
	all := []string{"a", "b", "c", "d"}
	errorText := func(suffix, what string) string {
		return "pod/" + strings.Join(all, suffix+" "+what+"\npod/") + suffix + " " + what + "\n"
	}
	n.expect("", []string{"apply", "-f", dir, "--dry-run=server"}, errorText("-node", "created (dry run)"), "", "")
	n.expect("", []string{"apply", "-f", dir}, errorText("-node", "created"), "", "")
	n.expect("", []string{"apply", "-f", dir, "--dry-run=none"}, errorText("-node", "unchanged"), "", "")
	n.expect("", []string{"delete", "-f", dir}, errorText("", "deleted"), "", "")
	// Concatenated documents on the standard input, as some programs write them.
	stream := jsonPod("a") + "\n" + jsonPod(
		"b",
	) + `{"apiVersion":"v1","kind":"List","items":[` + jsonPod(
		"c",
	) + "," + jsonPod("d") + "]}"
	n.expect(stream, []string{"apply", "-f", "-"}, errorText("-node", "created"), "", "")
	n.expect(
		listed("PodList", untyped(manifest("a", "i:2"))),
		[]string{"apply", "-f", "-"},
		"pod/a-node configured\n",
		"",
		"",
	)
	n.expect(stream, []string{"delete", "-f", "-"}, errorText("", "deleted"), "", "")
}

func TestSeveralFilesAndNames(t *testing.T) {
	n := newNode(t)
	a, b := n.write("a.yaml", manifest("a", "i:1")), n.write("b.yaml", manifest("b", "i:1"))
	n.expect("", []string{"apply", "-f", a, "-f", b}, "pod/a-node created\npod/b-node created\n", "", "")
	n.expect("", []string{"apply", "-f", a + "," + b}, "pod/a-node unchanged\npod/b-node unchanged\n", "", "")
	// The names as apply has printed them.
	n.expect("", []string{"delete", "pod/a-node", "pod/b-node"}, "pod/a-node deleted\npod/b-node deleted\n", "", "")
	n.expect(
		manifest("a", "i:1"),
		[]string{"apply", "-f", "-", "-f", b},
		"pod/a-node created\npod/b-node created\n",
		"",
		"",
	)
	n.expect(
		"",
		[]string{"delete", "pod", "a", "none", "b"},
		"pod/a deleted\npod/b deleted\n",
		"pod/none: the source \"local\" has no pod default/none: one of another source goes away with its file; quartet get pods lists all\n",
		"1 of 3 could not be deleted: see above",
	)
}

func TestProblemsOfAnItemHaveItsIndexAndLine(t *testing.T) {
	n := newNode(t)
	misspelled := strings.Replace(manifest("misspelled", "i"), "image:", "imago:", 1)
	n.write("list.yaml", manifest("first", "i:1")+"---\n"+strings.Replace(listed(
		"List",
		manifest(
			"good",
			"i:1",
		),
		manifest("bad", "''"),
		misspelled,
		"apiVersion: v1\nkind: Service\nmetadata: {name: good}",
		"3",
		listed("List"),
		manifest("last", "i:1"),
	), "metadata:", "more: 1\nmetadata:", 1))
	list := filepath.Join(n.dir, "list.yaml")
	n.expect("", []string{"apply", "-f", list}, "pod/first-node created\npod/good-node created\npod/last-node created\n",
		`DIR/list.yaml: document 2: check the spelling and the indentation of:
    unknown field "more"
DIR/list.yaml: document 2: items[1], line 15: pod/bad: it is not valid:
    spec.containers[0].image  Required value
DIR/list.yaml: document 2: items[2], line 19: pod/misspelled: check the spelling and the indentation of:
    unknown field "spec.containers[0].imago"
DIR/list.yaml: document 2: items[3], line 23: it must have apiVersion v1 and kind Pod, ConfigMap, Secret or PersistentVolumeClaim, or apiVersion storage.k8s.io/v1 and kind StorageClass or CSIDriver, and has "v1" and "Service"
DIR/list.yaml: document 2: items[4], line 26: it is no object: write a Pod, a ConfigMap, a Secret or a PersistentVolumeClaim, with apiVersion, kind and metadata
DIR/list.yaml: document 2: items[5], line 27: it must have apiVersion v1 and kind Pod, ConfigMap, Secret or PersistentVolumeClaim, or apiVersion storage.k8s.io/v1 and kind StorageClass or CSIDriver, and has "v1" and "List"
`, "6 of 9 could not be applied: see above")
	n.expect(
		"{\n  \"apiVersion\": \"v1\", \"kind\": \"List\",\n  \"items\": [\n    3,\n    "+jsonPod("last")+"]}",
		[]string{"apply", "-f", "-"},
		"pod/last-node unchanged\n",
		"standard input: items[0], line 4: it is no object: write a Pod, a ConfigMap, a Secret or a PersistentVolumeClaim, with apiVersion, kind and metadata\n",
		"1 of 2 could not be applied: see above",
	)
	// A name is enough for a deletion.
	n.expect(
		listed("List", misspelled, strings.Replace(manifest("last", "i"), "image:", "imago:", 1), "{kind: Pod}"),
		[]string{"delete", "-f", "-"},
		"pod/last deleted\n",
		`standard input: items[0], line 5: pod/misspelled: the source "local" has no pod default/misspelled: one of another source goes away with its file; quartet get pods lists all
standard input: items[2], line 13: it has no metadata.name, so it cannot be deleted
`,
		"2 of 3 could not be deleted: see above",
	)
}

func TestManifestsThatAreNone(t *testing.T) {
	n := newNode(t)
	none := listed("List") + "---\napiVersion: v1\nkind: PodList\nitems: []\n"
	n.expect(none, []string{"apply", "-f", "-"}, "", "", "there is nothing to apply: the lists have no items")
	n.expect(none, []string{"delete", "-f", "-"}, "", "there is nothing to delete: the lists have no items\n", "")
	for name, tc := range map[string]struct{ manifest, want string }{
		"the line of the file":      {"# one\n---\na: [\n---\n" + manifest("a", "i:1"), "document 1: yaml: line 3: "},
		"a key twice":               {manifest("a", "i:1") + "kind: Pod\n", "key \"kind\" already set"},
		"a key twice in JSON":       {strings.Replace(jsonPod("a"), "{", `{"kind":"Pod",`, 1), "duplicate field \"kind\""},
		"items that are no list":    {"apiVersion: v1\nkind: List\nitems: {a: 1}\n", "cannot unmarshal object into Go struct field .items"},
		"a text":                    {"just words", "it is no object: write a Pod"},
		"a document behind dashes":  {manifest("a", "i:1") + "--- {kind: Pod}\n", "line 5: begin the document on the line after the ---"},
		"a document after its end":  {"a: 1\n...\nb: 1\n", "document 2: it must have apiVersion v1"},
		"aliases that explode":      {"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n", "excessive aliasing"},
		"JSON that is cut off":      {jsonPod("a")[:40], "standard input: yaml: found unexpected end of stream"},
		"a kind that is written so": {strings.Replace(manifest("a", "i:1"), "Pod", "pod", 1), `has "v1" and "pod"`},
	} {
		if out, errOut, err := n.run(
			tc.manifest,
			"apply",
			"-f",
			"-",
			"--dry-run",
		); err == nil ||
			!strings.Contains(errOut, tc.want) {
			t.Errorf("%s: %v, output %q, errors %q, want %q", name, err, out, errOut, tc.want)
		}
	}
}
