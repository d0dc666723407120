package images_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
)

func pullSecret(name string, kind v1.SecretType, key, content string) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Type: kind, Data: map[string][]byte{key: []byte(content)}}
}

// pull pulls an image for a pod with these pull secrets, and returns the text of the error, empty on success.
func (r *rig) pull(image string, secrets ...*v1.Secret) string {
	_, err := r.Ensure(r.ctx, images.Request{Pod: pod("web"), Container: "main", Image: image, Policy: v1.PullAlways, Secrets: secrets})
	if err != nil {
		return err.Error()
	}
	return ""
}

func TestAPodsPullSecretsAreTriedBeforeTheNodesCredentials(t *testing.T) {
	const name = "registry.test/shop/web:1"
	nodes := &runtimeapi.AuthConfig{Username: "node", Password: "node-secret"}
	for what, c := range map[string]struct {
		taken   string // the user that the registry accepts
		secrets []*v1.Secret
		pulls   int
	}{
		"no secret":                {"node", nil, 1},
		"docker's config":          {"pod", []*v1.Secret{pullSecret("a", v1.SecretTypeDockerConfigJson, ".dockerconfigjson", configJSON("registry.test=pod"))}, 1},
		"its older form":           {"pod", []*v1.Secret{pullSecret("a", v1.SecretTypeDockercfg, ".dockercfg", dockercfg("https://registry.test=pod"))}, 1},
		"the node's after the pod": {"node", []*v1.Secret{pullSecret("a", v1.SecretTypeDockerConfigJson, ".dockerconfigjson", configJSON("registry.test=pod"))}, 2},
		"the most specific first, whichever secret has it": {"path", []*v1.Secret{
			pullSecret("a", v1.SecretTypeDockerConfigJson, ".dockerconfigjson", configJSON("registry.test=host")),
			pullSecret("b", v1.SecretTypeDockercfg, ".dockercfg", dockercfg("registry.test/shop=path")),
		}, 1},
		"what is of no use": {"node", []*v1.Secret{
			pullSecret("a", v1.SecretTypeOpaque, ".dockerconfigjson", configJSON("registry.test=pod")),
			pullSecret("b", v1.SecretTypeDockerConfigJson, ".dockerconfigjson", configJSON("other.test=pod", "ht tp://x=pod")),
			pullSecret("c", v1.SecretTypeDockerConfigJson, "other", configJSON("registry.test=pod")),
		}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, withCredentials(nodes))
			r.cri.Protect(name, c.taken, c.taken+"-secret")
			if got := r.pull(name, c.secrets...); got != "" {
				t.Errorf("error %s, want an empty text", got)
			}
			if got := r.cri.Count("PullImage", name); got != c.pulls {
				t.Errorf("%d pulls, want %d", got, c.pulls)
			}
		})
	}
}

func TestAPullSecretThatCannotBeReadFailsThePullAndIsNotLogged(t *testing.T) {
	const name = "registry.test/shop/web:1"
	for kind, key := range map[v1.SecretType]string{
		v1.SecretTypeDockerConfigJson: ".dockerconfigjson", v1.SecretTypeDockercfg: ".dockercfg",
	} {
		for _, content := range []string{"geheim", `{"auths":"geheim","registry.test":"geheim"}`, `{"auths":{"registry.test":{"auth":"geheim!"}},"x":{"auth":"geheim!"}}`} {
			r := newRig(t)
			want := `ErrImagePull: failed to pull image "registry.test/shop/web:1": pull secret shop/a: its ` + key + " cannot be decoded: check that it is docker's JSON"
			if got := r.pull(name, pullSecret("a", kind, key, content)); got != want {
				t.Errorf("%s: error %q, want %q", content, got, want)
			}
			if output := r.allOutput(); strings.Contains(output, "geheim") {
				t.Errorf("told:\n%s\nwant text without %q", output, "geheim")
			}
			if got := r.cri.Count("PullImage", name); got != 0 {
				t.Errorf("%d pulls, want 0", got)
			}
		}
	}
}
