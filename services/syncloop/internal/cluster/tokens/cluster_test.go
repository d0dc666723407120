package tokens_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/tokens"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// bound creates a Node, a service account and a pod with that account on that node, all of the same name.
func bound(t *testing.T, c *cluster.Cluster, name string) *v1.Pod {
	t.Helper()
	admin := c.Client(t).CoreV1()
	if _, err := admin.Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ServiceAccounts("default").Create(t.Context(), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := admin.Pods("default").Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{
		NodeName: name, ServiceAccountName: name, Containers: []v1.Container{{Name: "c", Image: "i:1"}},
		Volumes: []v1.Volume{{Name: "vault", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: ptr.To[int64](600), Path: "token"}},
		}}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// given requests a token until the request succeeds. The API server allows it shortly after its authorizer knows the
// pod.
func given(t *testing.T, tokens *tokens.Tokens, pod *v1.Pod, audience string) (token string) {
	t.Helper()
	eventuallyGiven(t, func() (err error) {
		token, err = tokens.Token(t.Context(), pod, audience, 600)
		return err
	})
	return token
}

// allow gives all nodes of the cluster a permission.
func allow(t *testing.T, c *cluster.Cluster, rule rbacv1.PolicyRule) {
	t.Helper()
	roles := c.Client(t).RbacV1()
	name := metav1.ObjectMeta{Name: "of-all-nodes"}
	if _, err := roles.ClusterRoles().Create(t.Context(),
		&rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := roles.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: cluster.Nodes}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// eventuallyGiven retries until there is no error, because the API server's authorizer learns of a role later.
func eventuallyGiven(t *testing.T, ask func() error) {
	t.Helper()
	var err error
	eventually.Wait{Interval: 100 * time.Millisecond, State: func() string { return err.Error() }}.
		That(t, "it is given", func() bool {
			err = ask()
			return err == nil
		})
}

// TestATokenOfAnAPIServer requests a token as a node. The API server must accept it as the pod's, as long as the pod
// exists, and issue another one for the refresh.
func TestATokenOfAnAPIServer(t *testing.T) {
	c := shared.Cluster(t)
	pod := bound(t, c, "robot")
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: c.Kubeconfig(t, cluster.NodeUser("robot"), cluster.Nodes), Service: nodeconfig.SyncLoop, QPS: 50, Burst: 100,
		ContentType: "application/vnd.kubernetes.protobuf",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	var log logbuffer.Buffer
	clock := clocktesting.NewFakeClock(time.Now())
	tokens := tokens.New(tokens.Config{
		Issue: tokens.FromAPIServer(client.Core), Changed: func(types.UID) {}, Clock: clock,
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	first := given(t, tokens, pod, "")
	reviewed := review(t, c, first)
	if u := reviewed.User; !reviewed.Authenticated || u.Username != "system:serviceaccount:default:robot" ||
		strings.Join(u.Extra["authentication.kubernetes.io/pod-uid"], "") != string(pod.UID) || strings.Join(u.Extra["authentication.kubernetes.io/node-name"], "") != "robot" {
		t.Errorf("the API server says of the token: %+v", reviewed)
	}
	vault := given(t, tokens, pod, "vault")
	if reviewed := review(t, c, vault); reviewed.Authenticated {
		t.Error("the API server takes a token that is for another audience")
	}
	if reviewed := review(t, c, vault, "vault"); !reviewed.Authenticated {
		t.Errorf("the token is not good for its audience: %s", reviewed.Error)
	}

	account, err := c.Client(t).CoreV1().ServiceAccounts("default").Get(t.Context(), "robot", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	plugins, err := tokens.UnwatchedToken(t.Context(), pod, account.UID, "vault")
	if err != nil {
		t.Fatal(err)
	}
	if u := review(t, c, plugins, "vault").User; strings.Join(u.Extra["authentication.kubernetes.io/pod-uid"], "") != string(pod.UID) {
		t.Errorf("the token that a plugin is given is of %+v", u)
	}
	// For an audience that the pod does not name, a node needs an additional permission.
	if _, err := tokens.UnwatchedToken(t.Context(), pod, account.UID, "registry"); err == nil || !strings.Contains(err.Error(), "registry") {
		t.Errorf("for an audience of its own: %v", err)
	}
	allow(t, c, rbacv1.PolicyRule{Verbs: []string{"request-serviceaccounts-token-audience"}, APIGroups: []string{""}, Resources: []string{"registry"}})
	eventuallyGiven(t, func() error {
		_, err := tokens.UnwatchedToken(t.Context(), pod, account.UID, "registry")
		return err
	})
	if _, err := tokens.UnwatchedToken(t.Context(), pod, "another", "vault"); err == nil || !strings.Contains(err.Error(), "UID") {
		t.Errorf("a token of an account with another UID: %v", err)
	}

	clock.Step(480 * time.Second)
	second := given(t, tokens, pod, "")
	if second == first || !review(t, c, second).Authenticated {
		t.Error("no other token was made when the first was to be replaced")
	}
	c.APIServer.Kill(t)
	clock.Step(480 * time.Second)
	if given(t, tokens, pod, "") != second {
		t.Error("while the API server is away the token that is good is not given")
	}
	c.APIServer.Start(t)
	if err := c.Client(t).CoreV1().Pods("default").Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	if reviewed := review(t, c, second); reviewed.Authenticated {
		t.Error("the token is taken although its pod is gone")
	}
	tokens.Forget(pod.UID)
	if _, err := tokens.Token(t.Context(), pod, "", 600); err == nil || !strings.HasPrefix(err.Error(), "the API server was asked for a token: ") || strings.Contains(err.Error(), "ey") {
		t.Errorf("of a pod that is gone: %v", err)
	}
	for _, secret := range []string{first, second, vault, plugins} {
		if strings.Contains(log.String(), secret) {
			t.Error("the log has a token")
		}
	}
	if !strings.Contains(log.String(), "cannot be replaced") {
		t.Errorf("the log does not say that the API server was away:\n%s", &log)
	}
}

// review returns the API server's review of a token for audiences, or for its own audience if there are none.
func review(t *testing.T, c *cluster.Cluster, token string, audiences ...string) authenticationv1.TokenReviewStatus {
	t.Helper()
	answer, err := c.Client(t).AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status
}
