"""What the bridge keeps of its server: its card, tasks, subscriptions and pending notifications."""
