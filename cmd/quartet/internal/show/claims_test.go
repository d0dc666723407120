package show

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// ListClaims implements EngineService.
func (f *fakeEngine) ListClaims(context.Context, *enginev1.ListClaimsRequest) (*enginev1.ListClaimsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &enginev1.ListClaimsResponse{Claims: f.claims, Released: f.released}, nil
}

// ListObjects implements ConfigService.
func (f *fakeConfig) ListObjects(
	_ context.Context, r *configv1.ListObjectsRequest,
) (*configv1.ListObjectsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refusal != nil {
		return nil, f.refusal
	}
	answer := &configv1.ListObjectsResponse{}
	for _, o := range f.objects {
		if o.GetKind() == r.GetKind() {
			answer.Objects = append(answer.Objects, o)
		}
	}
	return answer, nil
}

func newClaim(namespace, name, uid string, modes ...v1.PersistentVolumeAccessMode) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(uid), CreationTimestamp: metav1.NewTime(ago(time.Hour)),
			Annotations: map[string]string{
				annotationSizeEnforced: "false", annotationSizeNotEnforced: "the file system is mounted without prjquota", "mine": "1",
			},
		},
		Spec: v1.PersistentVolumeClaimSpec{AccessModes: modes, Resources: v1.VolumeResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
		}},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
}

// putDocument adds the document of a claim.
func (n *node) putDocument(claim *v1.PersistentVolumeClaim) {
	n.t.Helper()
	data, err := claim.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	n.config.objects = append(n.config.objects, &configv1.ObjectSummary{
		Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, Source: "file", Path: "/m/data.yaml",
		PersistentVolumeClaim: data, CreatedAt: timestamppb.New(ago(2 * time.Hour)),
	})
}

// hold adds a claim that has a directory.
func (n *node) hold(claim *v1.PersistentVolumeClaim, problem string, usedBy ...string) {
	n.t.Helper()
	claim = claim.DeepCopy()
	claim.Spec.VolumeName = "pvc-" + string(claim.UID)
	claim.Status = v1.PersistentVolumeClaimStatus{
		Phase: v1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests,
	}
	data, err := claim.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
		Local: &v1.LocalVolumeSource{Path: "/state/claims/" + claim.Namespace + "/" + claim.Name},
	}}}
	volume, err := pv.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	n.engine.claims = append(n.engine.claims, &enginev1.Claim{
		Claim: data, PersistentVolume: volume, UsedBy: usedBy, Problem: problem,
	})
}

// putClaims adds a claim of every status: bound, pending, of an ephemeral volume, and one that was deleted and applied
// again.
func (n *node) putClaims() {
	n.t.Helper()
	bound, again := newClaim("default", "data", "u1", v1.ReadWriteOnce), newClaim("shop", "db", "u3", v1.ReadWriteOncePod)
	deleted := newClaim("shop", "db", "u2", v1.ReadWriteOncePod)
	deleted.DeletionTimestamp = &metav1.Time{Time: ago(time.Minute)}
	deleted.Annotations = map[string]string{annotationSizeEnforced: "true", "mine": "1"}
	again.Annotations = map[string]string{"mine": "1"}
	n.putDocument(bound)
	n.putDocument(newClaim("default", "new", "u4", v1.ReadWriteMany, v1.ReadOnlyMany))
	n.putDocument(again)
	n.hold(bound, "", "default/web-node-1", "default/worker-node-1")
	n.hold(deleted, "it is a mount point", "shop/db-node-1")
	n.hold(newClaim("shop", "pod-scratch", "u5", v1.ReadWriteOnce), "", "shop/pod-node-1")
}

func TestGetClaims(t *testing.T) {
	n := newNode(t)
	n.putClaims()
	n.serve(layout.ConfigMux)
	n.serve(layout.SyncLoop)
	golden(t, "claims.txt", n.must("get", "pvc"))
	golden(t, "claims-wide.txt", n.must("get", "persistentvolumeclaims", "-o", "wide"))
	golden(t, "claim.yaml", n.must("get", "pvc", "data", "-o", "yaml"))
	golden(t, "describe-claim.txt", n.must("describe", "pvc", "-n", "shop", "db"))
	const why = "1Gi (not enforced: the file system is mounted without prjquota)"
	if out := n.must("describe", "pvc", "data"); !strings.Contains(out, why) || strings.Contains(out, annotationSizeNotEnforced) {
		t.Errorf("the description has no %q:\n%s", why, out)
	}
	if out := n.must("get", "pvc", "-o", "name", "-n", "default"); out != "persistentvolumeclaim/data\npersistentvolumeclaim/new\n" {
		t.Errorf("names: %s", out)
	}
	if out := n.must("get", "pvc", "-n", "none"); out != "There are no persistent volume claims in the namespace \"none\" on this node.\n" {
		t.Errorf("none: %s", out)
	}
	for _, command := range []string{"get", "describe"} {
		if _, _, err := n.run(command, "pvc", "none"); err == nil ||
			err.Error() != `there is no persistentvolumeclaim "none": 'quartet get persistentvolumeclaims' shows all` {
			t.Errorf("%s: %v", command, err)
		}
	}
}

func TestWithoutSyncloopTheStatusOfAClaimIsUnknown(t *testing.T) {
	n := newNode(t)
	n.putClaims()
	n.serve(layout.ConfigMux)
	out, errOut, err := n.run("get", "pvc", "data")
	if err != nil || !strings.Contains(out, "data   Unknown") || !strings.HasPrefix(errOut, "the status of the claims is not known: ") {
		t.Errorf("%v\n%s%s", err, out, errOut)
	}
}

// TestObjectsOfAClusterAreShownByKubectl asks a node of a cluster, which has no objects of its own.
func TestObjectsOfAClusterAreShownByKubectl(t *testing.T) {
	n := newNode(t)
	n.serve(layout.ConfigMux)
	n.config.refusal = status.Error(codes.Unimplemented, "this node has none of its own: its API server has them")
	for args, want := range map[string]string{
		"get pvc":          "'kubectl get pvc' shows the persistent volume claims of a cluster",
		"get pvc data":     "'kubectl get pvc'",
		"describe pvc":     "'kubectl get pvc'",
		"get sc":           "'kubectl get sc' shows the storage classes of a cluster",
		"describe sc fast": "'kubectl get sc'",
		"get csidrivers":   "'kubectl get csidrivers'",
		"get configmaps":   "'kubectl get configmaps'",
		"get secrets":      "'kubectl get secrets'",
	} {
		_, _, err := n.run(strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), "this node has none of its own: its API server has them; "+want) {
			t.Errorf("quartet %s: %v, want an error with %q", args, err, want)
		}
	}
	n.config.refusal = status.Error(codes.Internal, "the disk is broken")
	if _, _, err := n.run("get", "pvc"); err == nil || strings.Contains(err.Error(), "kubectl") {
		t.Errorf("another error: %v", err)
	}
}
