package applycmd

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/otlpsink"
)

func configMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {key: %q}\n", name, value)
}

func secret(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\nstringData: {key: %q}\n", name, value)
}

func TestConfigMapsAndSecretsAreAppliedShownAndDeleted(t *testing.T) {
	n := newNode(t)
	file := n.write("a.yaml", configMap("settings", "1")+"---\n"+secret("login", "s1")+"---\n"+manifest("a", "i:1"))
	apply := []string{"apply", "-f", file}
	n.expect(
		"",
		append(apply, "--dry-run"),
		"configmap/settings created (dry run)\nsecret/login created (dry run)\npod/a-node created (dry run)\n",
		"",
		"",
	)
	n.expect("", []string{"get", "secrets"}, "", "There are no secrets on this node.\n", "")
	n.expect("", apply, "configmap/settings created\nsecret/login created\npod/a-node created\n", "", "")
	n.expect(configMap("settings", "2"), []string{"apply", "-f", "-"}, "configmap/settings configured\n", "", "")
	n.expect("", apply, "configmap/settings configured\nsecret/login unchanged\npod/a-node unchanged\n", "", "")

	out, _, err := n.run("", "get", "secrets", "-o", "wide")
	if fields := strings.Fields(out); err != nil || len(strings.Split(out, "\n")) != 3 ||
		!strings.Contains(strings.Join(fields, " "), "login Opaque 1 ") ||
		!strings.HasSuffix(strings.TrimSpace(out), "false       local    key (2 bytes)") {
		t.Errorf("get secrets -o wide: %v\n%s", err, out)
	}
	out, _, err = n.run("", "get", "cm", "settings", "-o", "json")
	var got struct {
		Kind string
		Data map[string]string
	}
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || got.Kind != "ConfigMap" || got.Data["key"] != "1" {
		t.Errorf("get cm settings -o json: %v\n%s", err, out)
	}
	out, _, err = n.run("", "get", "secret", "login", "-o", "yaml")
	if err != nil || !strings.Contains(out, "  keys:\n  - bytes: \"2\"\n    name: key\n  kind: Secret\n  name: login\n") ||
		strings.Contains(out, "configMap") {
		t.Errorf("get secret login -o yaml: %v\n%s\nwant text with %q and without %q",
			err, out, "  keys:\n  - bytes: \"2\"\n    name: key\n  kind: Secret\n  name: login\n", "configMap")
	}
	n.expect("", []string{"get", "configmaps", "-o", "name"}, "configmap/settings\n", "", "")
	n.expect("", []string{"get", "secret", "none"}, "", "", `there is no secret "none": 'quartet get secrets' shows all`)

	n.expect("", []string{"delete", "secret", "login"}, "secret/login deleted\n", "", "")
	n.expect("", []string{"delete", "configmap/settings", "pod/a"}, "configmap/settings deleted\npod/a deleted\n", "", "")
	n.expect(
		"",
		[]string{"delete", "-f", file},
		"",
		"DIR/a.yaml: document 1: configmap/settings: the source \"local\" has no configmap default/settings: one of another source goes away with its file; quartet get configmaps lists all\n"+
			"DIR/a.yaml: document 2: secret/login: the source \"local\" has no secret default/login: one of another source goes away with its file; quartet get secrets lists all\n"+
			"DIR/a.yaml: document 3: pod/a: the source \"local\" has no pod default/a: one of another source goes away with its file; quartet get pods lists all\n",
		"3 of 3 could not be deleted: see above",
	)
	n.expect(
		"",
		[]string{"delete", "-n", "other", "cm", "x"},
		"",
		"configmap/other/x: the source \"local\" has no configmap other/x: one of another source goes away with its file; quartet get configmaps lists all\n",
		"1 of 1 could not be deleted: see above",
	)
}

func TestClaimsAreAppliedAndDeleted(t *testing.T) {
	n := newNode(t)
	claim := func(size, more string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec:\n"+
			"  accessModes: [ReadWriteOnce]\n  resources: {requests: {storage: %s}}\n%s", size, more)
	}
	apply := []string{"apply", "-f", "-"}
	n.expect(claim("1Gi", ""), apply, "persistentvolumeclaim/data created\n", "", "")
	n.expect(claim("1Gi", ""), apply, "persistentvolumeclaim/data unchanged\n", "", "")
	n.expect(claim("2Gi", ""), apply, "persistentvolumeclaim/data configured\n", "", "")
	n.expect(claim("2Gi", "  volumeName: pv\n"), apply, "",
		"standard input: persistentvolumeclaim/data: it is not valid:\n    spec.volumeName  Forbidden: a node without an API"+
			" server has no persistent volumes to choose from: leave the field out\n",
		"1 of 1 could not be applied: see above")
	n.stop()
	n.start()
	n.expect(claim("2Gi", ""), apply, "persistentvolumeclaim/data unchanged\n", "", "")
	n.expect("", []string{"delete", "pvc", "data"}, "persistentvolumeclaim/data deleted\n", "", "")
	n.expect("", []string{"delete", "pvc/data"}, "",
		"persistentvolumeclaim/data: the source \"local\" has no persistentvolumeclaim default/data: one of another source goes"+
			" away with its file; quartet get persistentvolumeclaims lists all\n",
		"1 of 1 could not be deleted: see above")
}

func TestProblemsOfAnObjectAreReportedByField(t *testing.T) {
	n := newNode(t)
	immutable := "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: fixed}, immutable: true, data: {a: '1'}}\n"
	n.expect(immutable, []string{"apply", "-f", "-"}, "configmap/fixed created\n", "", "")
	n.expect(
		strings.Replace(immutable, "'1'", "'2'", 1),
		[]string{"apply", "-f", "-"},
		"",
		"standard input: items[0], line 4: configmap/fixed: it is not valid:\n    data  Forbidden: field is immutable when `immutable` is set\n",
		"1 of 1 could not be applied: see above",
	)
	for _, tc := range []struct{ manifest, want string }{
		{"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {key: 5}\n", "stringData[key] must be a text: put it in quotes"},
		{"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {key: plain text}\n", "data[key] is not base64: put text that is not encoded under stringData"},
		{"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringdata: {key: x}\n", `unknown field "stringdata"`},
		{"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: [key, hunter2]\n", "stringData must have keys with a text each: write KEY: TEXT below it, indented"},
		{"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: hunter2\n", "data must have keys with a text each: write KEY: TEXT below it, indented"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nbinaryData: 7\n", "binaryData must have keys with a text each: write KEY: TEXT below it, indented"},
		{"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ntype: kubernetes.io/tls\n", "data[tls.crt]  Required value"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_b}\n", "metadata.name  Invalid value"},
	} {
		_, errOut, err := n.run(tc.manifest, "apply", "-f", "-")
		if err == nil || !strings.Contains(errOut, tc.want) {
			t.Errorf("got %v\n%s\nwant %s", err, errOut, tc.want)
		}
	}
}

// The value of a secret is nowhere else: not in the state directory, the log, a trace, a recording or an error, and in
// no answer except the one to the process that mounts it.
func TestTheValueOfASecretIsNowhere(t *testing.T) {
	const marker = "hunter2-is-not-to-be-seen"
	sink := otlpsink.Start(t)
	n := newNode(t)
	n.stop()
	n.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + sink.Endpoint(), "OTEL_BSP_SCHEDULE_DELAY=50"}
	n.start()
	var output bytes.Buffer
	run := func(stdin string, args ...string) {
		out, errOut, err := n.run(stdin, args...)
		fmt.Fprintln(&output, out, errOut, err)
	}
	look := func() {
		for _, of := range []string{"secrets", "configmaps", "sources"} {
			for _, format := range []string{"wide", "json", "yaml", "name"} {
				run("", "get", of, "-o", format)
			}
		}
		run("", "updates", "-o", "json")
	}
	// The manifests belong to the operator, and are outside of the searched directories.
	static := filepath.Join(n.dir, "static")
	must(t, os.MkdirAll(static, 0o700))
	put := func(content string) {
		must(t, os.WriteFile(filepath.Join(n.dir, ".static.new"), []byte(content), 0o600))
		must(t, os.Rename(filepath.Join(n.dir, ".static.new"), filepath.Join(static, "a.yaml")))
	}
	pod := strings.Replace(manifest("user", "i:1"), "image: i:1", "image: i:1, envFrom: [{secretRef: {name: applied}}]", 1)
	run(secret("applied", marker)+"---\n"+pod, "apply", "-f", "-")
	put(secret("filed", marker) + "---\n" + strings.Replace(pod, "user", "other", 1))
	eventually.That(n.t, "both secrets are there", func() bool {
		out, _, err := n.run("", "get", "secrets", "-o", "name")
		return err == nil && out == "secret/applied\nsecret/filed\n"
	})
	look()
	encoded := base64.StdEncoding.EncodeToString([]byte(marker))
	for _, wrong := range []string{
		"apiVersion: v1\nkind: Secret\nmetadata: {name: wrong}\ndata: {key: " + marker + "}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: wrong}\nstringData: {key: *" + marker + "}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: wrong}\nstringData: {key: {{" + marker + "}}}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: wrong}\nstringData: {key: [" + marker + "]}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: wrong}\nstringData: " + marker + "\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: wrong}\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: " + marker + "}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: applied}\ntype: Other\nstringData: {key: " + marker + "}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: A_b}\ndata: {key: " + encoded + "}\n",
	} {
		run(wrong, "apply", "-f", "-")
		run(wrong, "apply", "-f", "-", "--dry-run")
		put(wrong)
		eventually.That(n.t, "what is wrong is listed", func() bool {
			out, _, err := n.run("", "get", "sources")
			return err == nil && strings.Contains(out, "a.yaml")
		})
		look()
	}
	put(secret("filed", marker))
	run("", "updates", "record", filepath.Join(n.dir, "state", "updates.jsonl"), "--for", "200ms")
	run("", "secrets", "rotate-key")
	n.stop()
	n.search(marker)
	put("apiVersion: v1\nkind: Secret\nmetadata: {name: filed}\nstringData: {key: *" + marker + "}\n")
	n.start()
	look()
	if out, _, err := n.run(
		"",
		"get",
		"secrets",
		"-o",
		"wide",
	); err != nil ||
		strings.Count(out, fmt.Sprintf("key (%d bytes)", len(marker))) != 2 {
		t.Errorf(
			"after the restart there is\n%s%v\nwant both secrets, one of them of a manifest that is broken now",
			out,
			err,
		)
	}
	run("", "delete", "secret", "applied")
	n.stop()
	n.search(marker)
	must(t, os.WriteFile(filepath.Join(n.dir, "said"), output.Bytes(), 0o600))
	var spans bytes.Buffer
	fmt.Fprintf(&spans, "%+v", sink.Spans())
	if len(sink.Spans()) == 0 || !strings.Contains(spans.String(), "secret default/applied") {
		t.Error("nothing was traced")
	}
	must(t, os.WriteFile(filepath.Join(n.dir, "spans"), spans.Bytes(), 0o600))
	n.search(marker)
}

// search looks for a value in all files of the node except its manifests, in clear and as base64.
func (n *node) search(value string) {
	n.t.Helper()
	must(n.t, filepath.WalkDir(n.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || filepath.Dir(path) == filepath.Join(n.dir, "static") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// The base64 form of a part of a text depends on its offset.
		for skip := range 3 {
			encoded := base64.RawStdEncoding.EncodeToString([]byte(value)[skip:])
			if bytes.Contains(content, []byte(encoded[:len(encoded)-2])) {
				n.t.Errorf("%s has the secret as base64", path)
			}
		}
		if bytes.Contains(content, []byte(value)) {
			n.t.Errorf("%s has the secret", path)
		}
		return nil
	}))
}

func TestTheKeyIsRotated(t *testing.T) {
	n := newNode(t)
	n.expect("", []string{"secrets", "rotate-key"}, "There is no key yet: the first secret creates one.\n", "", "")
	n.expect(
		secret("a", "1")+"---\n"+secret("b", "2"),
		[]string{"apply", "-f", "-"},
		"secret/a created\nsecret/b created\n",
		"",
		"",
	)
	before, err := os.ReadFile(filepath.Join(n.stateDir, "secrets.key"))
	must(t, err)
	out, _, err := n.run("", "secrets", "rotate-key")
	if err != nil || !strings.HasSuffix(out, " now, and the old one is removed; files encrypted again: 2\n") {
		t.Errorf("rotate-key: %v\n%s\nwant text ending with %q",
			err, out, " now, and the old one is removed; files encrypted again: 2\n")
	}
	after, err := os.ReadFile(filepath.Join(n.stateDir, "secrets.key"))
	must(t, err)
	if len(after) != len(before) || bytes.Equal(after, before) {
		t.Error("the file does not have one other key")
	}
	n.stop()
	n.start()
	n.expect(
		secret("a", "1")+"---\n"+secret("b", "2"),
		[]string{"apply", "-f", "-"},
		"secret/a unchanged\nsecret/b unchanged\n",
		"",
		"",
	)
}

// A key that other users can read is refused with a message; other applied objects keep working, and with the key's
// mode corrected the secrets are back.
func TestAKeyThatOthersMayReadIsRefused(t *testing.T) {
	n := newNode(t)
	n.expect(
		secret("a", "1")+"---\n"+configMap("c", "1")+"---\n"+manifest("p", "i:1"),
		[]string{"apply", "-f", "-"},
		"secret/a created\nconfigmap/c created\npod/p-node created\n",
		"",
		"",
	)
	n.stop()
	key := filepath.Join(n.stateDir, "secrets.key")
	must(t, os.Chmod(key, 0o640))
	n.start()
	out, _, err := n.run("", "get", "sources")
	const want = "secrets.key has the mode 0640, so that others may have read the key: it must be 0600; run chmod 0600 "
	if err != nil || !strings.Contains(out, want) || !strings.Contains(out, "secret default/a") {
		t.Errorf("get sources: %v\n%s\nwant text with %q and with %q", err, out, want, "secret default/a")
	}
	n.expect("", []string{"get", "configmaps", "-o", "name"}, "configmap/c\n", "", "")
	_, errOut, err := n.run(secret("b", "2"), "apply", "-f", "-")
	if err == nil || !strings.Contains(errOut, want) {
		t.Errorf("apply: %v\n%s\nwant text with %q", err, errOut, want)
	}
	must(t, os.Chmod(key, 0o600))
	eventually.That(n.t, "the secret is there again", func() bool {
		out, _, err := n.run("", "get", "secrets", "-o", "name")
		return err == nil && out == "secret/a\n"
	})
}

// Storage classes and CSIDrivers have no namespace, also with -n.
func TestStorageClassesAreAppliedAndDeleted(t *testing.T) {
	n := newNode(t)
	const manifest = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\nprovisioner: %s\n---\n" +
		"apiVersion: storage.k8s.io/v1\nkind: CSIDriverList\nitems: [{metadata: {name: dirs.example.com}}]\n"
	apply := []string{"apply", "-f", "-"}
	n.expect(fmt.Sprintf(manifest, "dirs.example.com"), apply, "storageclass/fast created\ncsidriver/dirs.example.com created\n", "", "")
	n.expect(fmt.Sprintf(manifest, "other.example.com"), apply, "csidriver/dirs.example.com unchanged\n",
		"standard input: document 1: storageclass/fast: it is not valid:\n    provisioner  Invalid value: \"other.example.com\": field is immutable\n",
		"1 of 2 could not be applied: see above")
	n.expect("apiVersion: v1\nkind: StorageClass\nmetadata: {name: fast}\n", []string{"apply", "-f", "-"}, "",
		"standard input: it must have apiVersion v1 and kind Pod, ConfigMap, Secret, PersistentVolumeClaim or a list of them (List, PodList, ConfigMapList, SecretList, PersistentVolumeClaimList), or apiVersion storage.k8s.io/v1 and kind StorageClass, CSIDriver or a list of them (StorageClassList, CSIDriverList), and has \"v1\" and \"StorageClass\"\n",
		"1 of 1 could not be applied: see above")
	n.expect("", []string{"get", "sc", "-o", "name"}, "storageclass/fast\n", "", "")
	n.expect("", []string{"delete", "-n", "shop", "sc", "fast"}, "storageclass/fast deleted\n", "", "")
	n.expect("", []string{"delete", "csidriver/dirs.example.com"}, "csidriver/dirs.example.com deleted\n", "", "")
	n.expect("", []string{"delete", "sc", "fast"}, "",
		"storageclass/fast: the source \"local\" has no storageclass fast: one of another source goes away with its file; quartet get storageclasses lists all\n",
		"1 of 1 could not be deleted: see above")
}
