package staticpod_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// standalone is a file of a node without an API server.
var standalone = staticpod.Origin{
	Source:     "file",
	Allowed:    everything,
	Node:       "node-1",
	Standalone: true,
	Path:       "/manifests/web.yaml",
}

const (
	settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"
	login    = "apiVersion: v1\nkind: Secret\nmetadata: {name: login, namespace: a}\n"
	data     = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec:\n"
	class    = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\n"
	dataSpec = "  accessModes: [ReadWriteOnce]\n  resources: {requests: {storage: 1Gi}}\n"
)

// keysOf returns the keys of the valid objects.
func keysOf(r staticpod.Result) []string {
	keys := make([]string, 0, len(r.Objects))
	for _, o := range r.Objects {
		keys = append(keys, o.String())
	}
	return keys
}

func TestObjectsStandBesideThePods(t *testing.T) {
	both := []string{"configmap default/settings", "secret a/login"}
	for what, manifest := range map[string]string{
		"documents":      settings + "data: {a: b}\n---\n" + web + "---\n" + login + "stringData: {a: b}\n",
		"a list":         `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"}},` + item("web") + `,{"apiVersion":"v1","kind":"Secret","metadata":{"name":"login","namespace":"a"}}]}`,
		"lists of kinds": "apiVersion: v1\nkind: ConfigMapList\nitems: [{metadata: {name: settings}}]\n---\n" + web + "---\napiVersion: v1\nkind: SecretList\nitems: [{metadata: {name: login, namespace: a}, data: {a: null}}]\n",
	} {
		got := staticpod.Decode([]byte(manifest), standalone)
		if len(got.Problems) != 0 || len(got.Pods) != 1 || !slices.Equal(keysOf(got), both) {
			t.Errorf(
				"%s: pods %v, objects %v, problems %v; want one pod and %v",
				what,
				got.Pods,
				keysOf(got),
				got.Problems,
				both,
			)
		}
	}
}

func TestProblemsOfObjectsNameThemAndTheirFieldAndNoValue(t *testing.T) {
	const value = "hunter2"
	for _, test := range []struct{ manifest, object, field, message string }{
		{login + "data: {k: " + value + "}", "secret a/login", "data[k]", "line 4: must be base64: put text that is not encoded under stringData"},
		{login + "data: {k: 12345}", "secret a/login", "data[k]", "line 4: must be a string with base64"},
		{login + "stringData: {k: 12345}", "secret a/login", "stringData[k]", "line 4: must be a string: put it in quotes"},
		{login + "stringData: " + value, "secret a/login", "stringData", "line 4: must be an object: keys, each with its value"},
		{login + "stringdata: {k: " + value + "}", "secret a/login", "stringdata", "line 4: unknown field: check its spelling and its indentation"},
		{login + "type: 12345\ndata: {}", "secret a/login", "type", "line 4: must be a string, not number"},
		{login + "type: kubernetes.io/tls", "secret a/login", "data[tls.crt]", "Required value"},
		{login + "type: kubernetes.io/dockercfg\nstringData: {.dockercfg: " + value + "}", "secret a/login", "data[.dockercfg]", "its content must be a JSON object"},
		{login + "stringData: {k: *" + value + "}", "", "", "cannot parse it: "},
		{login + "stringData: {k: {{" + value + "}}}", "", "", "cannot parse it: "},
		{login + "stringData: {k: !!int " + value + "}", "", "", "cannot parse it: "},
		{settings + "binaryData: {k: " + value + "}", "configmap default/settings", "binaryData[k]", "line 4: must be base64: put text under data"},
		{settings + "data: {k: [1]}", "configmap default/settings", "data[k]", "line 4: must be a string: put it in quotes"},
		{settings + "data: {a/b: c}", "configmap default/settings", "data[a/b]", "line 4: Invalid value"},
		{settings + "data: {a: b}\nbinaryData: {a: aGk=}", "configmap default/settings", "data[a]", "line 4: Invalid value"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A_b}", "configmap default/A_b", "metadata.name", "line 3: Invalid value"},
		{"apiVersion: v1\nkind: Secret\nstringData: {k: " + value + "}", "", "metadata", "name the Secret"},
		{"apiVersion: v1\nkind: Secret\nmetadata: {name: 5}", "", "metadata", "name the Secret"},
		{"apiVersion: v1\nkind: Service\nmetadata: {name: x}", "", "kind", `must be Pod, ConfigMap, Secret, PersistentVolumeClaim, StorageClass, CSIDriver, or a list of them (List, PodList, ConfigMapList, SecretList, PersistentVolumeClaimList, StorageClassList, CSIDriverList), not "Service"`},
		{data + "  accessModes: [ReadWriteOnce]", "persistentvolumeclaim default/data", "spec.resources[storage]", "Required value"},
		{data + "  accessModes: ReadWriteOnce", "persistentvolumeclaim default/data", "spec.accessModes", "line 5: must be a list, not string"},
		{data + "  acessModes: [ReadWriteOnce]", "persistentvolumeclaim default/data", "spec.acessModes", "line 5: unknown field"},
		{data + dataSpec + "  volumeName: pv", "persistentvolumeclaim default/data", "spec.volumeName", "line 7: Forbidden: a node without an API server has no persistent volumes to choose from"},
		{class + "provisioner: a b", "storageclass fast", "provisioner", "line 4: Invalid value"},
		{class + "provisioner: x\nparameter: {}", "storageclass fast", "parameter", "line 5: unknown field"},
		{"apiVersion: v1\nkind: StorageClass\nmetadata: {name: fast}", "", "apiVersion", `must be "storage.k8s.io/v1", not "v1"`},
		{data + dataSpec + "  volumeMode: Block", "persistentvolumeclaim default/data", "spec.volumeMode", "line 7: Forbidden: a claim without a storageClassName is a directory"},
	} {
		got := staticpod.Decode([]byte(test.manifest), standalone)
		if len(got.Objects) != 0 || len(got.Problems) == 0 {
			t.Errorf("%q: objects %v, problems %v", test.manifest, keysOf(got), got.Problems)
			continue
		}
		p := got.Problems[0]
		if p.Object != test.object || p.Field != test.field || !strings.Contains(p.Message, test.message) {
			t.Errorf(
				"%q: got %q %q %q, want %q %q %q",
				test.manifest,
				p.Object,
				p.Field,
				p.Message,
				test.object,
				test.field,
				test.message,
			)
		}
		if got.Incomplete != (test.object == "") {
			t.Errorf("%q: incomplete %v, want %v", test.manifest, got.Incomplete, test.object == "")
		}
		if text := fmt.Sprint(got.Problems); strings.Contains(text, value) || strings.Contains(text, "12345") {
			t.Errorf("%q: the problems have the value: %s, want text without %q and without %q",
				test.manifest, text, value, "12345")
		}
	}
}

// An invalid object keeps its last valid version; a removed one is removed, unless the manifest is unreadable in that
// part.
func TestObjectsKeepTheirLastGoodVersion(t *testing.T) {
	before := staticpod.Decode([]byte(settings+"---\n"+login+"---\n"+web), standalone)
	known := staticpod.Held{Pods: before.Pods, Objects: before.Objects}
	for _, test := range []struct {
		manifest string
		pods     int
		objects  string
		outcome  string
	}{
		{settings + "data: {a: 1}", 0, "configmap default/settings", "; its last good version is kept: mend the file"},
		{settings + "data: {a: 1}\n---\n" + login, 0, "secret a/login configmap default/settings", "; its last good version is kept: mend the file"},
		{strings.Replace(settings, "settings", "other", 1) + "data: {a: 1}", 0, "", "; it is left out: mend the file"},
		{"{", 1, "configmap default/settings secret a/login", "; the last good version of what was in the file is kept: mend the file"},
	} {
		got := staticpod.Decode([]byte(test.manifest), standalone)
		held, kept := got.WithLastGood(known)
		keys := keysOf(staticpod.Result{Objects: held.Objects})
		if len(held.Pods) != test.pods || strings.Join(keys, " ") != test.objects {
			t.Errorf("%q: %d pods, %v; want %d, %s", test.manifest, len(held.Pods), keys, test.pods, test.objects)
		}
		if outcome := kept.Outcome(got.Problems[0], "the file"); outcome != test.outcome {
			t.Errorf("%q: outcome %q, want %q", test.manifest, outcome, test.outcome)
		}
	}
}

func TestAPodMayNameObjectsOnlyWhereTheyCanBeBesideIt(t *testing.T) {
	const names = "    envFrom: [{secretRef: {name: x}}, {configMapRef: {name: x}}]\n" +
		"    env: [{name: A, valueFrom: {secretKeyRef: {name: x, key: k}}}, {name: B, valueFrom: {configMapKeyRef: {name: x, key: k}}}]\n" +
		"  imagePullSecrets: [{name: x}]\n" +
		"  volumes: [{name: a, secret: {secretName: x}}, {name: b, configMap: {name: x}}, {name: c, projected: {sources: [{secret: {name: x}}, {configMap: {name: x}}]}}," +
		" {name: d, persistentVolumeClaim: {claimName: x}}, {name: e, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}," +
		" {name: f, csi: {driver: x, nodePublishSecretRef: {name: x}}}]\n"
	got := staticpod.Decode([]byte(web+names), standalone)
	if len(got.Problems) != 0 || len(got.Pods) != 1 || !staticpod.NamesObjects(got.Pods[0]) {
		t.Fatalf("standalone: %d pods, problems %v", len(got.Pods), got.Problems)
	}
	if refused := staticpod.Decode([]byte(web+names), origin); len(refused.Pods) != 0 || len(refused.Problems) != 12 {
		t.Errorf("with an API server: %d pods, problems %v, want twelve", len(refused.Pods), refused.Problems)
	}
	// Fields that only an API server can provide stay refused.
	for _, fields := range []string{
		"  serviceAccountName: x\n",
		"  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}, {secret: {name: x}}]}}]\n",
		"  volumes: [{name: v, cephfs: {monitors: [x], secretRef: {name: x}}}]\n",
	} {
		if got := staticpod.Decode(
			[]byte(web+fields),
			standalone,
		); len(got.Pods) != 0 ||
			!strings.Contains(got.Problems[0].Message, "it runs without an API server") {
			t.Errorf("%s: %d pods, problems %v, want 0 and got.Problems[0].Message with %q",
				fields, len(got.Pods), got.Problems, "it runs without an API server")
		}
	}
}

// Claims stand beside the pods that name them, alone, in a list, or as the items of a list of claims.
func TestClaimsStandBesidePods(t *testing.T) {
	const item = "{metadata: {name: b}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}"
	got := staticpod.Decode([]byte(data+dataSpec+"---\n"+web+"---\napiVersion: v1\nkind: PersistentVolumeClaimList\nitems: ["+
		item+"]\n"), standalone)
	if len(got.Problems) != 0 || len(got.Pods) != 1 ||
		strings.Join(keysOf(got), " ") != "persistentvolumeclaim default/data persistentvolumeclaim default/b" {
		t.Fatalf("%d pods, %v, problems %v, want none, 1 and %q",
			len(got.Pods), keysOf(got), got.Problems, "persistentvolumeclaim default/data persistentvolumeclaim default/b")
	}
	if refused := staticpod.Decode([]byte(data+dataSpec), origin); len(refused.Objects) != 0 ||
		!strings.Contains(refused.Problems[0].Message, "this node has an API server") {
		t.Errorf("with an API server: %v, problems %v", keysOf(refused), refused.Problems)
	}
	// The claim of a generic ephemeral volume is one of the node too.
	template := "  volumes: [{name: e, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], volumeName: pv," +
		" resources: {requests: {storage: 1Gi}}}}}}]\n"
	refused := staticpod.Decode([]byte(web+template), standalone)
	if len(refused.Pods) != 0 || len(refused.Problems) != 1 ||
		refused.Problems[0].Field != "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.volumeName" {
		t.Errorf("a template with a volume: %d pods, problems %v", len(refused.Pods), refused.Problems)
	}
}

// Storage classes and CSIDrivers stand beside the pods of the driver, alone, in a list, or as the items of a list.
func TestStorageClassesStandBesidePods(t *testing.T) {
	const drivers = "apiVersion: storage.k8s.io/v1\nkind: CSIDriverList\nitems: [{metadata: {name: dirs.example.com}}]\n"
	const item = "{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: slow}, provisioner: dirs.example.com}"
	manifest := class + "provisioner: dirs.example.com\n---\n" + web + "---\n" + drivers + "---\n" +
		"apiVersion: v1\nkind: List\nitems: [" + item + "]\n"
	got := staticpod.Decode([]byte(manifest), standalone)
	want := "storageclass fast csidriver dirs.example.com storageclass slow"
	if len(got.Problems) != 0 || len(got.Pods) != 1 || strings.Join(keysOf(got), " ") != want {
		t.Fatalf("%d pods, %v, problems %v, want 1 and %q", len(got.Pods), keysOf(got), got.Problems, want)
	}
	if refused := staticpod.Decode([]byte(class+"provisioner: x"), origin); len(refused.Objects) != 0 ||
		!strings.Contains(refused.Problems[0].Message, "this node has an API server") {
		t.Errorf("with an API server: %v, problems %v", keysOf(refused), refused.Problems)
	}
}
