package staticpod_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// FuzzDecode checks that no manifest makes the decoder panic, or use much time or memory. Pods that it accepts are
// valid with their defaults, and can be run and sent; and its result is deterministic.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", web, web + "---\n" + web, web + "  volumes:\n  - name: v\n    secret: {secretName: x}\n",
		`{"apiVersion":"v1","kind":"List","items":[` + item("a") + "," + item("b") + "]}",
		item("a"), `{"apiVersion":"v1","kind":"PodList","items":[{}, null, 3]}`, "a: &a [*a]", "---\n---\n...\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x, uid: u, deletionTimestamp: 2020-01-01T00:00:00Z}\nspec: {containers: [{name: a, image: b, ports: [{containerPort: 80}], resources: {limits: {cpu: 1e3, memory: 1Gi}}, livenessProbe: {httpGet: {port: 80}}}]}\n",
		laughs(4), "a: &a [x, *a]\nb: *a\n", "apiVersion: v1\nkind: List\nitems:\n- &p " + item("a") + "\n- {<<: *p, status: {}}\n",
		web + "    securityContext: {privileged: true}\n  hostNetwork: true\n  shareProcessNamespace: true\n  os: {name: linux}\n",
		web + "    env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]\n  ephemeralContainers: []\n  overhead: {cpu: 1}\n",
		settings + "---\n" + login, "apiVersion: v1\nkind: SecretList\nitems:\n- {metadata: {name: a}, data: {k: aGk=}}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\nbinaryData: {a: aGk=}\ndata: {a: b}\nimmutable: true\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: x, annotations: {a: b}}\ntype: kubernetes.io/tls\nstringData: {tls.crt: x, tls.key: 1}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, manifest []byte) {
		decodesWell(t, manifest, origin)
		decodesWell(t, manifest, standalone)
	})
}

// FuzzFields checks the same for a valid pod with additional fields: more inputs reach the defaults and the validation.
func FuzzFields(f *testing.F) {
	for _, seed := range []string{
		"    ports: [{containerPort: 80, hostPort: 80, protocol: TCP, name: p}]", "    livenessProbe: {httpGet: {port: 80, path: /}, periodSeconds: 3}",
		"    resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}", "    env: [{name: A, value: $(B)}, {name: B, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]",
		"    volumeMounts: [{name: v, mountPath: /a, subPath: b}]\n  volumes: [{name: v, hostPath: {path: /x, type: File}}]",
		"    lifecycle: {preStop: {exec: {command: [a]}}}\n  initContainers: [{name: i, image: i, restartPolicy: Always}]",
		"    securityContext: {runAsUser: 0, capabilities: {add: [ALL]}}\n  securityContext: {sysctls: [{name: a.b, value: c}], fsGroup: 3}",
		"  hostNetwork: true\n  dnsConfig: {nameservers: [1.1.1.1], options: [{name: n}]}\n  hostAliases: [{ip: ::1, hostnames: [a]}]",
		"  tolerations: [{key: a, operator: Equal, value: b, effect: NoExecute, tolerationSeconds: 3}]\n  priority: 3\n  preemptionPolicy: Never",
		"  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: z, labelSelector: {matchLabels: {a: b}}}]}}",
		"  topologySpreadConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: DoNotSchedule}]\n  terminationGracePeriodSeconds: -1\n  overhead: {cpu: 1e-9}",
		"    imagePullPolicy: &a Always\n  restartPolicy: *a\n  nodeSelector: {<<: {a: b}}\n  ephemeralContainers: [{name: e, image: i}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, fields []byte) {
		decodesWell(t, append([]byte(web), fields...), origin)
	})
}

// FuzzObjectFields checks the same for a valid config map and a valid secret with additional fields.
func FuzzObjectFields(f *testing.F) {
	for _, seed := range []string{"immutable: true", "type: kubernetes.io/basic-auth", "data: {a: aGk=}", "binaryData: {b: aGk=}", "metadata: 3", "data: [1]", "stringData: {a: 1}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, fields []byte) {
		for _, good := range []string{settings, login} {
			decodesWell(t, append([]byte(good), fields...), standalone)
		}
	})
}

// decodesWell checks the guarantees of the decoder for any manifest.
func decodesWell(t *testing.T, manifest []byte, origin staticpod.Origin) {
	t.Helper()
	if len(manifest) > 64<<10 {
		t.Skip("the bounds are those of 64 KiB")
	}
	got := bounded(t, manifest, origin)
	if !origin.Standalone && len(got.Objects) > 0 {
		t.Fatalf("%v of a node with an API server", got.Objects)
	}
	for _, o := range got.Objects {
		data, err := o.Marshal()
		if err != nil {
			t.Fatalf("an object that cannot be sent is called good: %v", err)
		}
		again, err := apiobject.Unmarshal(o.Kind(), data)
		if err != nil || again.Key() != o.Key() || o.Key().Name == "" || o.Key().Namespace == "" {
			t.Fatalf("%s is called good: %v", o, err)
		}
		if errs := again.Prepare(); len(errs) > 0 {
			t.Fatalf("an object is called good that is not valid: %v", errs.ToAggregate())
		}
	}
	if len(got.Pods) == 0 && len(got.Problems) == 0 && got.Incomplete {
		t.Fatal("incomplete, and no problem says why")
	}
	for _, pod := range got.Pods {
		if pod.Name == "" || pod.Namespace == "" || pod.UID == "" || pod.Spec.NodeName != origin.Node {
			t.Fatalf("pod %s/%s of UID %q on %q is called good", pod.Namespace, pod.Name, pod.UID, pod.Spec.NodeName)
		}
		if pod.Annotations[podset.AnnotationSource] != "" || pod.Annotations[podset.AnnotationMirror] != "" {
			t.Fatalf("forged annotations are kept: %v", pod.Annotations)
		}
		if _, err := pod.Marshal(); err != nil {
			t.Fatalf("a pod that cannot be sent is called good: %v", err)
		}
		stillValid(t, pod)
	}
	again := staticpod.Decode(manifest, origin)
	if diff := cmp.Diff(got, again); diff != "" {
		t.Fatalf("decoding twice differs:\n%s", diff)
	}
}

// stillValid checks that a pod with all additions of the decoder is valid.
func stillValid(t *testing.T, pod *v1.Pod) {
	t.Helper()
	internal := &core.Pod{}
	if err := corev1.Convert_v1_Pod_To_core_Pod(pod.DeepCopy(), internal, nil); err != nil {
		t.Fatalf("a pod that cannot be converted is called good: %v", err)
	}
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&internal.Spec, nil, &internal.ObjectMeta, nil)
	if errs := validation.ValidatePodCreate(internal, options); len(errs) > 0 {
		t.Fatalf("a pod is called good that is not valid: %v", errs.ToAggregate())
	}
}
