package configmux

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
)

func configMapManifest(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {key: %q}\n", name, value)
}

func secretManifest(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\nstringData: {key: %q}\n", name, value)
}

func (p *process) tryApplySecret(name, value string) (*configv1.ApplyObjectResponse, error) {
	p.t.Helper()
	data, err := (&v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name},
		StringData: map[string]string{"key": value}}).Marshal()
	must(p.t, err)
	return p.client.ApplyObject(
		p.t.Context(),
		&configv1.ApplyObjectRequest{Kind: "Secret", Object: data},
		grpc.WaitForReady(true),
	)
}

func (p *process) applyConfigMap(c *v1.ConfigMap, dryRun bool) (*configv1.ApplyObjectResponse, error) {
	p.t.Helper()
	data, err := c.Marshal()
	must(p.t, err)
	return p.client.ApplyObject(
		p.t.Context(),
		&configv1.ApplyObjectRequest{Kind: "ConfigMap", Object: data, DryRun: dryRun},
		grpc.WaitForReady(true),
	)
}

// watchObjects opens a stream and returns the function that reads it.
func (p *process) watchObjects(req *configv1.WatchObjectsRequest) func() *configv1.WatchObjectsResponse {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	p.t.Cleanup(cancel)
	out, err := p.client.WatchObjects(ctx, req, grpc.WaitForReady(true))
	must(p.t, err)
	return func() *configv1.WatchObjectsResponse {
		p.t.Helper()
		m, err := out.Recv()
		must(p.t, err)
		return m
	}
}

// objectText says a message in a few words.
func objectText(t *testing.T, m *configv1.WatchObjectsResponse) string {
	t.Helper()
	words := []string{strings.TrimPrefix(m.GetFrame().GetKind().String(), "KIND_")}
	if m.GetFrame().GetRemoved() {
		words = append(words, "removed")
	}
	if m.GetSource() != nil {
		words = append(words, fmt.Sprintf("source %s ready=%v", m.GetSource().GetName(), m.GetSource().GetReady()))
	}
	if o := m.GetObject(); o != nil {
		words = append(words, o.GetSource(), m.GetFrame().GetKey())
		if len(o.GetObject()) > 0 {
			words = append(words, valueOf(t, o))
		}
	}
	return strings.Join(words, " ")
}

// valueOf is the value of the key "key".
func valueOf(t *testing.T, o *configv1.Object) string {
	t.Helper()
	if o.GetKind() == "Secret" {
		secret := &v1.Secret{}
		must(t, secret.Unmarshal(o.GetObject()))
		return string(secret.Type) + ":" + string(secret.Data["key"])
	}
	config := &v1.ConfigMap{}
	must(t, config.Unmarshal(o.GetObject()))
	return config.Data["key"]
}

func expectObjects(t *testing.T, next func() *configv1.WatchObjectsResponse, want ...string) (token []byte) {
	t.Helper()
	for _, w := range want {
		m := next()
		if got := objectText(t, m); got != w {
			t.Fatalf("got %q, want %q", got, w)
		}
		token = m.GetFrame().GetResumeToken()
	}
	return token
}

func TestObjectsOfFilesAndOfCallsReachTheSubscriber(t *testing.T) {
	p := newProcess(t)
	p.write(
		"a.yaml",
		configMapManifest("settings", "1")+"---\n"+secretManifest("login", "s1")+"---\n"+manifest("web", "web", "i:1"),
	)
	p.run()
	p.ready()
	next := p.watchObjects(&configv1.WatchObjectsRequest{})
	expectObjects(t, next, "OPENED")
	seen := map[string]bool{}
	for m := objectText(t, next()); m != "SYNCED"; m = objectText(t, next()) {
		seen[m] = true
	}
	for _, want := range []string{
		"SNAPSHOT source file ready=true", "SNAPSHOT source local ready=true",
		"SNAPSHOT file ConfigMap/default/settings 1", "SNAPSHOT file Secret/default/login Opaque:s1",
	} {
		if !seen[want] {
			t.Errorf("%q is not among %v", want, seen)
		}
	}
	p.write("a.yaml", configMapManifest("settings", "2"))
	expectObjects(t, next, "DELTA removed file Secret/default/login", "DELTA file ConfigMap/default/settings 2")
	answer, err := p.tryApplySecret("login", "s2")
	must(t, err)
	if answer.GetOp() != configv1.Op_OP_ADD || answer.GetNamespace() != "default" || answer.GetName() != "login" {
		t.Errorf("applied: %v, want Op %v, Namespace %q and Name %q", answer, configv1.Op_OP_ADD, "default", "login")
	}
	token := expectObjects(t, next, "DELTA local Secret/default/login Opaque:s2")
	_, err = p.client.DeleteObject(t.Context(), &configv1.DeleteObjectRequest{Kind: "Secret", Name: "login"})
	must(t, err)
	expectObjects(t, next, "DELTA removed local Secret/default/login")

	// A token resumes the same selection only.
	again := p.watchObjects(&configv1.WatchObjectsRequest{ResumeToken: token})
	if m := again(); m.GetFrame().GetOpening().GetStart() != streamv1.Start_START_RESUMED {
		t.Errorf("start %v, want RESUMED", m.GetFrame().GetOpening().GetStart())
	}
	expectObjects(t, again, "DELTA removed local Secret/default/login")
	other := p.watchObjects(&configv1.WatchObjectsRequest{ResumeToken: token, Kind: "Secret"})
	if m := other(); m.GetFrame().GetOpening().GetStart() != streamv1.Start_START_SNAPSHOT_INVALID {
		t.Errorf("start %v, want SNAPSHOT_INVALID", m.GetFrame().GetOpening().GetStart())
	}
	_, err = p.client.DeleteObject(t.Context(), &configv1.DeleteObjectRequest{Kind: "Secret", Name: "login"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("the second deletion: %v, want NOT_FOUND", err)
	}
}

func TestASelectionLeavesOutTheOthers(t *testing.T) {
	p := newProcess(t)
	p.run()
	p.ready()
	next := p.watchObjects(&configv1.WatchObjectsRequest{Kind: "ConfigMap", Name: "b"})
	for m := objectText(t, next()); m != "SYNCED"; m = objectText(t, next()) {
	}
	p.write("m.yaml", configMapManifest("a", "1")+"---\n"+secretManifest("b", "s")+"---\n"+configMapManifest("b", "2"))
	token := expectObjects(t, next, "DELTA file ConfigMap/default/b 2")
	p.write("m.yaml", configMapManifest("b", "3"))
	expectObjects(t, next, "DELTA file ConfigMap/default/b 3")
	again := p.watchObjects(&configv1.WatchObjectsRequest{Kind: "ConfigMap", Name: "b", ResumeToken: token})
	expectObjects(t, again, "OPENED", "DELTA file ConfigMap/default/b 3")
	wrong := p.watchObjectsError(&configv1.WatchObjectsRequest{Kind: "Pod"})
	if status.Code(wrong) != codes.InvalidArgument {
		t.Errorf("a kind that is not known: %v, want INVALID_ARGUMENT", wrong)
	}
}

func (p *process) watchObjectsError(req *configv1.WatchObjectsRequest) error {
	p.t.Helper()
	out, err := p.client.WatchObjects(p.t.Context(), req, grpc.WaitForReady(true))
	must(p.t, err)
	_, err = out.Recv()
	return err
}

func TestAFileThatDoesNotParseKeepsItsObjectsThroughARestart(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", configMapManifest("settings", "1")+"---\n"+secretManifest("login", "s1"))
	p.run()
	p.ready()
	p.stop() // it writes the checkpoint
	p.write("a.yaml", "apiVersion: v1\nkind: Secret\nstringData: {key: *s2}\n")
	p.run()
	p.ready()
	next, seen := p.watchObjects(&configv1.WatchObjectsRequest{}), map[string]bool{}
	for m := objectText(t, next()); m != "SYNCED"; m = objectText(t, next()) {
		seen[m] = true
	}
	if !seen["SNAPSHOT file ConfigMap/default/settings 1"] || !seen["SNAPSHOT file Secret/default/login Opaque:s1"] {
		t.Errorf("what is left after the restart: %v", seen)
	}
	errs := p.errors("file")
	if len(errs) != 1 || !strings.Contains(errs[0], "a.yaml|||cannot parse it: ") || strings.Contains(errs[0], "s2") ||
		!strings.Contains(errs[0], "the last good version") {
		t.Errorf("the errors are %q, want exactly one, errs[0] with %q, errs[0] without %q and errs[0] with %q",
			errs, "a.yaml|||cannot parse it: ", "s2", "the last good version")
	}
}

// errors are those of a source, as path, object, field and message.
func (p *process) errors(source string) []string {
	p.t.Helper()
	listed, err := p.client.ListSources(p.t.Context(), &configv1.ListSourcesRequest{})
	must(p.t, err)
	var out []string
	for _, s := range listed.GetSources() {
		for _, e := range s.GetErrors() {
			if s.GetName() == source {
				out = append(
					out,
					fmt.Sprintf("%s|%s|%s|%s", filepath.Base(e.GetPath()), e.GetObject(), e.GetField(), e.GetMessage()),
				)
			}
		}
	}
	return out
}

func TestProblemsOfAnObjectAreReportedByField(t *testing.T) {
	p := newProcess(t)
	p.write("web.yaml", configMapManifest("theirs", "1"))
	p.run()
	p.ready()
	immutable := true
	_, err := p.applyConfigMap(
		&v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "fixed"},
			Immutable:  &immutable,
			Data:       map[string]string{"key": "1"},
		},
		false,
	)
	must(t, err)
	for what, test := range map[string]struct {
		config *v1.ConfigMap
		code   codes.Code
		fields string
	}{
		"a bad key":               {&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"a/b": ""}}, codes.InvalidArgument, "data[a/b]"},
		"a bad name":              {&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "A_b"}}, codes.InvalidArgument, "metadata.name"},
		"no name":                 {&v1.ConfigMap{}, codes.InvalidArgument, "metadata.name"},
		"a change of a fixed one": {&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "fixed"}, Immutable: &immutable, Data: map[string]string{"key": "2"}}, codes.InvalidArgument, "data"},
		"one of a file":           {&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}, codes.AlreadyExists, ""},
	} {
		_, err := p.applyConfigMap(test.config, false)
		var fields []string
		for _, detail := range status.Convert(err).Details() {
			if bad, is := detail.(*errdetails.BadRequest); is {
				for _, v := range bad.GetFieldViolations() {
					fields = append(fields, v.GetField())
				}
			}
		}
		if status.Code(err) != test.code || strings.Join(fields, " ") != test.fields {
			t.Errorf("%s: %v, fields %q; want %v, %q", what, err, fields, test.code, test.fields)
		}
	}
	if answer, err := p.applyConfigMap(
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dry"}},
		true,
	); err != nil ||
		answer.GetOp() != configv1.Op_OP_ADD {
		t.Errorf("a dry run: %v, %v, want ADD", answer, err)
	}
	listed, err := p.client.ListObjects(t.Context(), &configv1.ListObjectsRequest{})
	must(t, err)
	var names []string
	for _, o := range listed.GetObjects() {
		names = append(names, o.GetSource()+":"+o.GetName())
	}
	if !slices.Equal(names, []string{"local:fixed", "file:theirs"}) {
		t.Errorf("there are %q, want %q", names, []string{"local:fixed", "file:theirs"})
	}
}

// If two sources have one object, the first in the order file, http, local is used, and the other has an error as long
// as it has the object.
func TestOfTwoSourcesWithOneObjectTheFileCounts(t *testing.T) {
	p := newProcess(t)
	p.run()
	p.ready()
	_, err := p.applyConfigMap(
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"key": "applied"}},
		false,
	)
	must(t, err)
	next := p.watchObjects(&configv1.WatchObjectsRequest{})
	for m := objectText(t, next()); m != "SYNCED"; m = objectText(t, next()) {
	}
	p.write("a.yaml", configMapManifest("settings", "of the file"))
	expectObjects(t, next, "DELTA file ConfigMap/default/settings of the file")
	errs := p.errors("local")
	if len(errs) != 1 ||
		!strings.Contains(
			errs[0],
			`|configmap default/settings|metadata.name|the source "file" has a configmap default/settings too, in `+filepath.Join(
				p.dir,
				"a.yaml",
			),
		) {
		t.Errorf("the errors are %q, want exactly one and errs[0] with %q",
			errs,
			`|configmap default/settings|metadata.name|the source "file" has a configmap default/settings too, in `+filepath.Join(
				p.dir,
				"a.yaml",
			))
	}
	must(t, os.Remove(filepath.Join(p.dir, "a.yaml")))
	expectObjects(t, next, "DELTA local ConfigMap/default/settings applied")
	if errs := p.errors("local"); len(errs) != 0 {
		t.Errorf("the errors that are left: %q", errs)
	}
}

// On a node with an API server, that server has the objects, and a static pod must not reference any.
func TestANodeWithAnAPIServerHasNoObjectsOfItsOwn(t *testing.T) {
	p := newProcess(t)
	root := t.TempDir()
	p.cfg.Kubeconfig, p.cfg.Peers.NodeStatus = filepath.Join(root, "kubeconfig"), "unix://"+filepath.Join(root, "n.sock")
	must(
		t,
		os.WriteFile(
			p.cfg.Kubeconfig,
			[]byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://198.51.100.1:6443'}}]\n"+
				"users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"),
			0o600,
		),
	)
	p.write("a.yaml", configMapManifest("settings", "1"))
	p.write(
		"b.yaml",
		strings.Replace(manifest("web", "web", "i"), "image: i", "image: i, envFrom: [{secretRef: {name: login}}]", 1),
	)
	p.write("c.yaml", manifest("good", "good", "i"))
	p.run()
	p.ready()
	if err := p.watchObjectsError(&configv1.WatchObjectsRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("WatchObjects: %v, want UNIMPLEMENTED", err)
	}
	_, list := p.client.ListObjects(t.Context(), &configv1.ListObjectsRequest{})
	_, apply := p.tryApplySecret("login", "s")
	_, remove := p.client.DeleteObject(t.Context(), &configv1.DeleteObjectRequest{Kind: "Secret", Name: "login"})
	_, rotate := p.client.RotateSecretsKey(t.Context(), &configv1.RotateSecretsKeyRequest{})
	for _, err := range []error{list, apply, remove, rotate} {
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v, want UNIMPLEMENTED", err)
		}
	}
	errs := strings.Join(p.errors("file"), "\n")
	for _, want := range []string{
		`a.yaml|configmap default/settings|kind|line 2: must be Pod, PodList or List, not "ConfigMap": this node has an API server`,
		"b.yaml||spec.containers[0].envFrom[0].secretRef|line 4: Forbidden: a static pod must not use secrets: on a node with an API server",
	} {
		if !strings.Contains(errs, want) {
			t.Errorf("the errors are %s, want %s", errs, want)
		}
	}
}

func TestAStandaloneStaticPodMayNameObjects(t *testing.T) {
	p := newProcess(t)
	p.write(
		"a.yaml",
		strings.Replace(
			manifest("web", "web", "i:1"),
			"image: i:1",
			"image: i:1, envFrom: [{secretRef: {name: login}}, {configMapRef: {name: settings}}]",
			1,
		),
	)
	p.run()
	p.ready()
	expect(t, p.watch(nil), "OPENED", "SNAPSHOT ADD web-node i:1", "SNAPSHOT source file ready=true", "SYNCED")
	if errs := p.errors("file"); len(errs) > 0 {
		t.Errorf("errors %q, want none", errs)
	}
}
