package transcripts

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
)

// pod returns a pod with one container. Its UID distinguishes the pods of a name.
func pod(name, uid, image string) *v1.Pod {
	grace := int64(30)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(uid)},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace, DNSPolicy: v1.DNSDefault,
			NodeName:   "node",
			Containers: []v1.Container{{Name: "main", Image: image, ImagePullPolicy: v1.PullIfNotPresent}},
		},
	}
}

// begin is the beginning of most stories: syncloop runs, and a pod is ready.
func begin(s *story, web *v1.Pod) {
	s.t.Helper()
	s.note("syncloop starts, with one pod in the only source.")
	s.source("file", true)
	s.add(configv1.Op_OP_ADD, web)
	s.start()
	s.ready(web.UID)
	s.pass(5 * time.Second)
}

func TestCreate(t *testing.T) {
	writeStory(t, "create", "A pod is created, and removed", func(s *story) {
		s.note("syncloop starts on a node on which nothing runs. No source has been read yet.")
		s.source("file", false)
		s.start()
		s.pass(time.Second)
		s.note("A manifest is found. Its image is not on the node.")
		web := pod("web", "web-a", "shop:1")
		s.add(configv1.Op_OP_ADD, web)
		s.source("file", true)
		s.ready("web-a")
		s.pass(5 * time.Second)
		s.note("The manifest is removed. The pod has 30 s to end, and takes none of them.")
		s.remove(web)
		s.pass(time.Minute)
	})
}

func TestCrash(t *testing.T) {
	writeStory(t, "crash", "A container crashes, and crashes again", func(s *story) {
		web := pod("web", "web-a", "web:1")
		begin(s, web)
		s.note("The first crash costs no wait: the container is started again at once.")
		s.exit(web, 1)
		s.ready("web-a")
		s.note("The second comes soon after. From now on the wait doubles, from 10 s up to 5 min, and the pod says why it waits.\nOf the containers that have ended one is kept: it says how often the container was started, and why it ended.")
		s.pass(time.Second)
		s.exit(web, 1)
		s.ready("web-a")
		s.pass(time.Second)
		s.exit(web, 1)
		s.ready("web-a")
		s.note("Then it runs for 11 min. After 10 min its crashes are forgotten, and the next one costs no wait again.")
		s.pass(11 * time.Minute)
		s.exit(web, 1)
		s.ready("web-a")
	})
}

// TestChangedImageOfAJob checks that a container that is killed because its spec has changed has not completed,
// whatever its exit code is.
func TestChangedImageOfAJob(t *testing.T) {
	writeStory(t, "changed-image-of-a-job", "The image of a job that runs is changed, and its container exits with 0", func(s *story) {
		s.machine.fake.ExitOnTerm("main", 0)
		job := pod("job", "job-a", "web:1")
		job.Spec.RestartPolicy = v1.RestartPolicyNever
		begin(s, job)
		s.note("Its image is changed.")
		changed := job.DeepCopy()
		changed.Spec.Containers[0].Image = "web:2"
		s.add(configv1.Op_OP_UPDATE, changed)
		s.ready("job-a")
		s.pass(time.Second)
		s.note("Its image is changed again. It takes long to end, and syncloop is killed meanwhile.")
		s.machine.fake.IgnoreTerm("main")
		s.add(configv1.Op_OP_UPDATE, job)
		s.pass(5 * time.Second)
		s.kill()
		s.note("It ends. The next syncloop knows that another container is to take its place.")
		s.exit(job, 0)
		s.pass(time.Second)
		s.start()
		s.pass(time.Second)
	})
}

func TestUpdateDuringTermination(t *testing.T) {
	writeStory(t, "update-during-termination", "A manifest changes while the pod of the one before is ending", func(s *story) {
		s.machine.fake.IgnoreTerm("main")
		first, second, third := pod("web", "web-a", "web:1"), pod("web", "web-b", "web:2"), pod("web", "web-c", "shop:3")
		begin(s, first)
		s.note("The manifest changes. A static pod with another spec has another UID, so one pod goes and another comes. Both are called\nweb, and two pods of one name never run at a time. The old one does not heed SIGTERM.")
		s.remove(first)
		s.add(configv1.Op_OP_ADD, second)
		s.pass(10 * time.Second)
		s.note("It changes again. The second pod has never been started, and never will be.")
		s.remove(second)
		s.add(configv1.Op_OP_ADD, third)
		s.pass(10 * time.Second)
		s.note("After its 30 s the first one is killed, and the third one starts.")
		s.ready("web-c")
	})
}

func TestStaticUIDReuse(t *testing.T) {
	writeStory(t, "static-uid-reuse", "A static pod with a UID of its own goes, and comes back changed while it is ending", func(s *story) {
		s.machine.fake.IgnoreTerm("main")
		before, after := pod("web", "web-a", "web:1"), pod("web", "web-a", "web:2")
		begin(s, before)
		s.note("Somebody moves the manifest away.")
		s.remove(before)
		s.pass(10 * time.Second)
		s.note("And puts it back, with another image and the same metadata.uid. What has begun to end ends: the pod of this UID is\nstarted anew when nothing of its earlier life runs, and as it is wanted now. Its restart count goes on.")
		s.add(configv1.Op_OP_ADD, after)
		s.pass(25 * time.Second)
		s.ready("web-a")
	})
}

func TestOrphanAtStart(t *testing.T) {
	writeStory(t, "orphan-at-start", "A pod runs when syncloop starts, and no source names it", func(s *story) {
		old := pod("old", "old-a", "web:1")
		begin(s, old)
		s.note("syncloop is killed, the pod runs on. Meanwhile its manifest is removed, and configmux is restarted: nothing has been read.")
		s.kill()
		s.remove(old)
		s.source("file", false)
		s.source("http", false)
		s.pass(10 * time.Second)
		s.note("syncloop starts. The pod may yet be named by a source that has not been read: nothing is done to it.")
		s.start()
		s.source("file", true)
		s.pass(10 * time.Second)
		s.note("The last source has been read, and does not name it. It is an orphan, with 1 s to end (the runtime is asked for 2 s at\nleast: SIGTERM would be pointless with less).")
		s.source("http", true)
		s.pass(10 * time.Second)
	})
}

func TestShorterGrace(t *testing.T) {
	writeStory(t, "shorter-grace-period", "A pod is deleted, and then deleted with a shorter grace period", func(s *story) {
		s.machine.fake.IgnoreTerm("main")
		web := pod("web", "web-a", "web:1")
		begin(s, web)
		s.note("The API server has the pod deleted, with 60 s to end. It does not heed SIGTERM.")
		s.add(configv1.Op_OP_DELETE, deleted(web, 60))
		s.pass(20 * time.Second)
		s.note("Somebody loses patience: kubectl delete --grace-period=5. That holds from now on, not from the next try on.")
		s.add(configv1.Op_OP_DELETE, deleted(web, 5))
		s.pass(10 * time.Second)
		s.note("The source still names the pod: what has ended of it stays, and says so. When the pod is gone from the API server, the\nrest is removed.")
		s.remove(web)
		s.pass(10 * time.Second)
	})
}

// deleted returns a deleted pod with a grace period in seconds.
func deleted(pod *v1.Pod, grace int64) *v1.Pod {
	pod = pod.DeepCopy()
	now := metav1.NewTime(time.Now())
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
	return pod
}

func TestKilledInTheMiddleOfATermination(t *testing.T) {
	writeStory(t, "killed-in-a-termination", "syncloop is killed while it gives a pod its 60 s to end", func(s *story) {
		s.machine.fake.IgnoreTerm("main")
		web := pod("web", "web-a", "web:1")
		*web.Spec.TerminationGracePeriodSeconds = 60
		begin(s, web)
		s.note("The manifest is removed. The pod does not heed SIGTERM.")
		s.remove(web)
		s.pass(20 * time.Second)
		s.note("kill -9. The pod goes on, as every pod does, and so does the deadline, which is in a file: neither a source nor the\nruntime knows of it.")
		s.kill()
		s.pass(8 * time.Second)
		s.note("The next syncloop knows the pod from the runtime alone. It has what is left, and not 60 s again.")
		s.start()
		s.pass(time.Minute)
	})
}

func TestDeletedWhilePending(t *testing.T) {
	writeStory(t, "deleted-while-pending", "A pod is deleted while its image is pulled", func(s *story) {
		job := pod("job", "job-a", "shop:1")
		job.Spec.RestartPolicy = v1.RestartPolicyNever
		s.note("syncloop starts, with one pod in the only source. Its image is not on the node.")
		s.source("file", true)
		s.add(configv1.Op_OP_ADD, job)
		s.start()
		s.pass(time.Second)
		s.note("The pod is deleted. No container of it has run, and none will: it has failed, which a controller waits for.")
		s.add(configv1.Op_OP_DELETE, deleted(job, 30))
		s.pass(10 * time.Second)
		s.remove(job)
		s.pass(10 * time.Second)
	})
}

func TestKilledInAPreStopHook(t *testing.T) {
	writeStory(t, "killed-in-a-prestop-hook", "syncloop is killed while a preStop hook runs", func(s *story) {
		web := pod("web", "web-a", "web:1")
		*web.Spec.TerminationGracePeriodSeconds = 60
		web.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 20}}}
		begin(s, web)
		s.note("The manifest is removed. The preStop hook takes 20 s.")
		s.remove(web)
		s.pass(10 * time.Second)
		s.kill()
		s.pass(5 * time.Second)
		s.note("The hook has not ended, so the next syncloop runs it again, within the time that is left.")
		s.start()
		s.pass(time.Minute)
	})
}

func TestDeletedInAPostStartHook(t *testing.T) {
	writeStory(t, "deleted-in-a-poststart-hook", "A pod is deleted while a postStart hook runs", func(s *story) {
		web := pod("web", "web-a", "web:1")
		web.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
			PostStart: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 300}},
			PreStop:   &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 5}},
		}
		s.note("syncloop starts, with one pod in the only source. Its postStart hook takes 5 min.")
		s.source("file", true)
		s.add(configv1.Op_OP_ADD, web)
		s.start()
		s.pass(20 * time.Second)
		s.note("The pod is deleted. The postStart hook is cut short, which is no failure of it. The preStop hook is run: it takes 5 s of the\n30 s that the pod has.")
		s.add(configv1.Op_OP_DELETE, deleted(web, 30))
		s.pass(20 * time.Second)
		s.remove(web)
		s.pass(10 * time.Second)
	})
}

func TestKilledInTheMiddleOfAStart(t *testing.T) {
	writeStory(t, "killed-in-a-start", "syncloop is killed while it starts a pod", func(s *story) {
		s.note("A container is created, and about to be started.")
		web := pod("web", "web-a", "web:1")
		s.source("file", true)
		s.add(configv1.Op_OP_ADD, web)
		s.start()
		s.pass(240 * time.Millisecond)
		s.note("kill -9.")
		s.kill()
		s.pass(time.Second)
		s.note("The next syncloop goes on from what the runtime has. A container that was created and never started is\nremoved before it is made again: the runtime may still be at it, and two of a name must not run.")
		s.start()
		s.ready("web-a")
		s.pass(time.Minute)
	})
}

func TestNoNetwork(t *testing.T) {
	writeStory(t, "no-network", "The node has no network for pods yet", func(s *story) {
		s.note("The runtime is up and has no network plugin. One pod is of the host's network: it brings the plugin.")
		s.network("cni plugin not initialized")
		web, cni := pod("web", "web-a", "web:1"), pod("cni", "cni-a", "web:2")
		cni.Spec.HostNetwork = true
		s.source("file", true)
		s.add(configv1.Op_OP_ADD, web)
		s.add(configv1.Op_OP_ADD, cni)
		s.start()
		s.ready("cni-a")
		s.pass(10 * time.Second)
		s.note("The plugin is there. pleg is asked every 5 s, and nobody waits for the next try.")
		s.network("")
		s.ready("web-a")
	})
}

func TestEviction(t *testing.T) {
	writeStory(t, "eviction", "A pod is evicted, and stays so", func(s *story) {
		web := pod("web", "web-a", "web:1")
		begin(s, web)
		s.note("nodestatus finds too little memory and asks syncloop to evict the pod, with 3 s to end.")
		s.evict("web-a", "Evicted", "The node was low on resource: memory.", 3)
		s.pass(2 * time.Minute)
		s.note("Its source still names it. No restart of syncloop starts it again: evictions are in a file.")
		s.kill()
		s.pass(time.Second)
		s.start()
		s.pass(5 * time.Minute)
		s.note("Only when the source has not named it for once may a pod of this UID run again.")
		s.remove(web)
		s.pass(10 * time.Second)
		s.add(configv1.Op_OP_ADD, web)
		s.ready("web-a")
	})
}

func TestRefused(t *testing.T) {
	writeStory(t, "refused", "A pod asks for more than the node has", func(s *story) {
		s.note("The node has 2 CPUs for pods. Two pods want more together; the older one is let in first, whichever was told first.")
		s.node("2")
		big, small := wants(pod("big", "big-a", "web:1"), "1500m", 10), wants(pod("small", "small-a", "web:1"), "1", 0)
		s.add(configv1.Op_OP_ADD, big)
		s.add(configv1.Op_OP_ADD, small)
		s.source("file", true)
		s.start()
		s.ready("small-a")
		s.pass(time.Minute)
		s.note("A pod that was refused stays refused, also when there is room for it now.")
		s.remove(small)
		s.pass(time.Minute)
		s.note("It is asked anew when it is named anew.")
		s.remove(big)
		s.pass(10 * time.Second)
		s.add(configv1.Op_OP_ADD, big)
		s.ready("big-a")
	})
}

func TestResize(t *testing.T) {
	writeStory(t, "resize", "A pod that runs asks for more than the node has left", func(s *story) {
		s.note("The node has 2 CPUs for pods, of which two pods have 1500m.")
		s.node("2")
		web, shop := wants(pod("web", "web-a", "web:1"), "500m", 0), wants(pod("shop", "shop-a", "web:2"), "1", 10)
		shop.Spec.Containers[0].Name, shop.Spec.TerminationGracePeriodSeconds = "stock", new(int64(5))
		s.machine.fake.IgnoreTerm("stock") // it exits only after the resize is over, so that the order is defined
		s.add(configv1.Op_OP_ADD, web)
		s.add(configv1.Op_OP_ADD, shop)
		s.source("file", true)
		s.start()
		s.ready("web-a")
		s.ready("shop-a")
		s.note("One asks for 1500m. There is no room for that, and it goes on as it is. It is asked anew every 2 s.")
		s.add(configv1.Op_OP_UPDATE, wants(pod("web", "web-a", "web:1"), "1500m", 0))
		s.pass(5 * time.Second)
		s.note("syncloop is killed. The next one knows what the pod was promised.")
		s.kill()
		s.pass(time.Second)
		s.start()
		s.pass(10 * time.Second)
		s.note("The other pod goes, and there is room: the container is changed while it runs.")
		s.remove(shop)
		s.pass(10 * time.Second)
		s.note("It asks for less, which is always possible.")
		s.add(configv1.Op_OP_UPDATE, wants(pod("web", "web-a", "web:1"), "100m", 0))
		s.pass(5 * time.Second)
	})
}

// wants returns a pod that requests CPUs and was created some seconds after the first one.
func wants(pod *v1.Pod, cpus string, later int64) *v1.Pod {
	pod.CreationTimestamp = metav1.Unix(946_684_800+later, 0)
	pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpus)}
	return pod
}

func TestRuntimeAwayAndBack(t *testing.T) {
	writeStory(t, "runtime-away", "The container runtime is away, and comes back", func(s *story) {
		web, shop := pod("web", "web-a", "web:1"), pod("shop", "shop-a", "web:2")
		begin(s, web)
		s.note("The runtime is stopped. What runs goes on running: containers do not need it. pleg finds out, and syncloop when it asks\npleg the next time, at most 5 s later.")
		s.away(true)
		s.pass(6 * time.Second)
		s.note("A pod is added, and another removed. The new one waits until the runtime is back. The end of the old one waits for\nnothing, and is tried again and again.")
		s.add(configv1.Op_OP_ADD, shop)
		s.remove(web)
		s.pass(20 * time.Second)
		s.note("The runtime is back. Nobody waits for the next try: what failed is thought to be over.")
		s.away(false)
		s.ready("shop-a")
	})
}
